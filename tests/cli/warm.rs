//! `pub --warm`, and the commands that read the file of a repository.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{Place, Running, json as parsed, wait_until};

/// A directory in a tmpfs.
fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain characters")
}

/// Publishes to a topic of this kind that outlives the command, once the topic is there.
fn publish(place: &Place, kind: &str, path: &Path) -> Running {
    place.publish_with("shm:p/t", &["--kind", kind, "--warm", text(path)])
}

fn target(path: &Path) -> String {
    format!("file:{}", text(path))
}

/// Publishes these lines, and waits until the last one is there.
fn write(place: &Place, publisher: &mut Running, lines: &[&str]) {
    lines.iter().for_each(|line| publisher.write(line));
    let last = format!("{:?}", lines.last().expect("a line"));
    wait_until("the last line", || place.run(&["get", "shm:p/t"]).out.contains(&last));
}

#[test]
fn log_of_a_killed_command_is_read_from_its_file_and_continued() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("log");
    let mut publisher = publish(&place, "log", &path);
    write(&place, &mut publisher, &["one", "two"]);
    publisher.signal(Signal::KILL);
    publisher.end();

    let tail = place.run(&["tail", &target(&path), "--earliest", "--json"]);
    let values: Vec<_> = tail.printed().lines().map(|line| parsed(line)["value"].clone()).collect();
    assert_eq!(values, ["one", "two"]);
    assert!(place.run(&["get", &target(&path)]).printed().contains("\"two\""));
    let info = place.run(&["info", &target(&path)]);
    let rows: Vec<_> =
        info.printed().lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    // The file does not say which node had it.
    assert_eq!(rows[..3], [vec!["topic", "t"], vec!["file", text(&path)], vec!["kind", "log"]]);
    let info = place.run(&["info", &target(&path), "--json"]);
    assert_eq!(
        (&parsed(info.printed())["node"], &parsed(info.printed())["topic"]),
        (&json!(null), &json!("t"))
    );

    let mut publisher = publish(&place, "log", &path);
    write(&place, &mut publisher, &["three"]);
    let tail = place.run(&["tail", &target(&path), "--earliest", "--json"]);
    let lines: Vec<_> = tail.printed().lines().map(parsed).collect();
    let sequences: Vec<_> = lines.iter().map(|line| line["sequence"].clone()).collect();
    assert_eq!(sequences, [json!(1), json!(2), json!(3)]);
    assert!(lines.iter().all(|line| line["epoch"] == lines[0]["epoch"]), "{lines:?}");
    publisher.end_input();
    publisher.end();
}

#[test]
fn file_that_is_in_use_or_of_another_topic_is_refused() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("state");
    let mut publisher = publish(&place, "state", &path);
    write(&place, &mut publisher, &["one"]);
    let again = |target: &str, kind: &str| place.run(&["pub", target, "--kind", kind, "--warm", text(&path)]);
    again("shm:q/t", "state").assert_failure(7, &[text(&path), "in use", &publisher.process().to_string()]);
    publisher.end_input();
    publisher.end();
    again("shm:q/t", "log").assert_failure(7, &[text(&path), "state", "log"]);
    again("shm:q/other", "state").assert_failure(7, &[text(&path), "the topic t,", "the topic other"]);
    // It holds what it held.
    assert!(place.run(&["get", &target(&path)]).printed().contains("\"one\""));
}

/// Values would have the sequences of others, and so be taken for these where there are several lines.
#[test]
fn file_that_ends_before_the_sequence_to_continue_after_is_refused() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("log");
    let options = ["--kind", "log", "--warm", text(&path), "--epoch", "7"];
    let publish = |more: &[&str]| place.publish_with("shm:p/t", &[&options[..], more].concat());
    let end = |mut publisher: Running| {
        publisher.end_input();
        publisher.end()
    };
    let mut first = publish(&["--after", "5"]);
    ["six", "seven"].iter().for_each(|line| first.write(line));
    end(first);
    let refused = place.run(&[&["pub", "shm:p/t"], &options[..], &["--after", "8"]].concat());
    refused.assert_failure(7, &["sequences up to 7", "one after 8"]);
    // The same command again.
    let mut again = publish(&["--after", "5"]);
    again.write("eight");
    end(again);
    let tail = place.run(&["tail", &target(&path), "--earliest", "--json"]);
    let sequences: Vec<_> = tail.printed().lines().map(|line| parsed(line)["sequence"].clone()).collect();
    assert_eq!(sequences, [json!(6), json!(7), json!(8)]);
}

#[test]
fn file_without_values_continues_after_the_sequence_that_it_was_made_with() {
    let (place, memory) = (Place::new(), memory());
    for kind in ["state", "log", "table"] {
        let path = memory.path().join(kind);
        let options = ["--kind", kind, "--warm", text(&path), "--epoch", "7", "--after", "5"];
        for _ in 0..2 {
            let mut publisher = place.publish_with("shm:p/t", &options);
            publisher.end_input();
            let ended = publisher.end();
            // The input had no line.
            assert_eq!((ended.code, ended.error.as_str()), (Some(1), ""), "{kind}: {ended:?}");
        }
    }
}

#[test]
fn lines_of_a_file_are_refused() {
    let place = Place::new();
    for verb in ["get", "tail"] {
        let refused = place.run(&[verb, "file:/dev/shm/none", "--line", "shm:a/t"]);
        refused.assert_failure(2, &["omit --line"]);
    }
}

#[test]
fn file_without_a_repository_is_named_with_what_to_do() {
    let (place, memory) = (Place::new(), memory());
    let file = |name: &str, content: &[u8]| -> PathBuf {
        let path = memory.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    };
    let foreign = file("foreign", &[b'x'; 10_000]);
    for path in [&foreign, &file("short", b"x"), &file("empty", b"")] {
        place.run(&["get", &target(path)]).assert_failure(7, &[text(path)]);
        place.run(&["tail", &target(path)]).assert_failure(7, &[text(path)]);
    }
    let missing = memory.path().join("missing");
    place.run(&["info", &target(&missing)]).assert_failure(3, &[text(&missing)]);
    place.run(&["get", "file:/dev/zero"]).assert_failure(7, &["/dev/zero", "not a regular file"]);
    for option in [&["--follow"][..], &["--push"], &["--follow", "--deadline", "1s"]] {
        place
            .run(&[&["tail", "file:/dev/zero"], option].concat())
            .assert_failure(2, &["a file has no publisher"]);
    }
    // What others have made is never replaced.
    let refused = place.run(&["pub", "shm:p/t", "--warm", text(&foreign)]);
    refused.assert_failure(7, &[text(&foreign)]);
    assert_eq!(std::fs::read(&foreign).expect("it is there"), [b'x'; 10_000]);
}

/// The publisher has ended: nothing else tells that an entry is missing.
#[test]
fn damaged_entry_and_missing_key_of_a_file_are_told_apart() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("table");
    let mut publisher = publish(&place, "table", &path);
    ["a\tfirst", "b\tsecond"].iter().for_each(|line| publisher.write(line));
    wait_until("the last line", || place.run(&["get", "shm:p/t"]).out.contains("\"second\""));
    publisher.end_input();
    publisher.end();
    let missing = ["get", &target(&path), "c"];
    let sentence = format!("{} has no key \"c\": the topic has ended", target(&path));
    place.run(&missing).assert_failure(1, &[&sentence]);
    let none = place.run(&["tail", &target(&path), "--key", "c*"]);
    none.assert_failure(1, &[&target(&path), "has no key that matches c*: check --key\n"]);
    let later = place.run(&["tail", &target(&path), "--from", "99"]);
    later.assert_failure(1, &[&format!("{} has no commit 99 (newest: ", target(&path))]);
    assert!(!later.error.contains("--follow"), "{later:?}");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let at = bytes.windows(5).position(|bytes| bytes == b"first").expect("its value");
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).expect("it is there");
    for key in ["a", "c"] {
        let damaged = place.run(&["get", &target(&path), key]);
        damaged.assert_failure(1, &["it has damaged entries (1)"]);
    }
    let tail = place.run(&["tail", &target(&path), "--last", "5"]);
    assert_eq!(tail.code, Some(1), "{tail:?}");
    assert!(tail.out.contains("\"second\"") && tail.error.contains("1 value is damaged"), "{tail:?}");
}

#[test]
fn file_that_is_cut_while_it_is_read_is_a_failure() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("log");
    let more = ["--kind", "log", "--capacity", "16M", "--warm", text(&path)];
    let mut publisher = place.publish_with("shm:p/t", &more);
    let lines: Vec<String> = (0..50_000).map(|number| format!("{number:060}")).collect();
    lines.iter().for_each(|line| publisher.write(line));
    publisher.end_input();
    publisher.end();
    let mut command = place.command(&["tail", &target(&path), "--earliest"]);
    let mut tail = command.spawn().expect("it starts");
    let mut out = BufReader::new(tail.stdout.take().expect("a pipe"));
    let mut first = String::new();
    out.read_line(&mut first).expect("a line");
    assert!(first.contains(&lines[0]), "{first:?}");
    // It cannot write more than the pipe and this buffer hold before the rest is read.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    file.set_len(4096).expect("it can be cut");
    std::io::copy(&mut out, &mut std::io::sink()).expect("the rest");
    let ended = tail.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error:?}");
    assert!(error.contains("records of file:") && error.contains("could not be read"), "{error:?}");
}

#[test]
fn file_for_which_there_is_no_space_is_named_with_its_length() {
    let (place, memory) = (Place::new(), memory());
    let path = memory.path().join("log");
    // A limit of files stands in for a file system that is full.
    let script = "ulimit -f 100 && exec \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.env("FABRICAST_RUNTIME_DIR", place.path()).env_remove("RUST_LOG");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_fabricast"), "pub", "shm:p/t", "--kind", "log"]);
    let output = command.args(["--capacity", "1M", "--warm", text(&path)]).output().expect("it runs");
    let error = String::from_utf8(output.stderr).expect("a text");
    assert_eq!(output.status.code(), Some(7), "{error}");
    let parts = ["cannot reserve the memory of", text(&path), " bytes)", "ulimit -f"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}
