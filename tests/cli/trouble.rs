//! Publishers that hang, are gone, or refuse, and nodes and topics that are not there.

use fabricast::limits;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::Signal;

use crate::support::{Ended, Place, RUN_MAX, catches, wait_until};
use crate::watch::is_stopped;

#[test]
fn missing_topic_or_node_is_reported() {
    let place = Place::new();
    let _node = place.node("n");
    for verb in ["info", "get", "watch", "tail", "hz"] {
        let waits = ["watch", "hz"].contains(&verb);
        let run = |target| {
            place.run(&[&[verb, target][..], if waits { &["--until-end"][..] } else { &[] }].concat())
        };
        run("shm:nobody/t").assert_failure(3, &["shm:nobody/t", "`fabricast list`"]);
        run("shm:n/nothing").assert_failure(3, &["shm:n/nothing", "`fabricast list shm:n`"]);
    }
}

#[test]
fn stopped_publisher_is_hung() {
    let place = Place::new();
    let living = place.node("living");
    let _topic = living.state_publisher::<u32>("t").open().unwrap();
    let stopped: Vec<_> =
        ["hung-1", "hung-2", "hung-3"].map(|name| place.publish(&format!("shm:{name}/t"))).into();
    for publisher in &stopped {
        publisher.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(publisher.process()));
    }
    let rows = place.list(&[]);
    let states: Vec<_> =
        rows.iter().map(|row| (row["node"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("hung-1", "hung"), ("hung-2", "hung"), ("hung-3", "hung"), ("living", "live")]);
    assert!(rows[0]["topic"].is_null() && rows[3]["topic"] == "t");

    let ended = place.run(&["list", "shm:hung-1"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.out.ends_with("hung-1  -      -     -     -         -    -    hung\n"), "{ended:?}");
    assert!(ended.error.contains("shm:hung-1"), "{ended:?}");
    let ended = place.run(&["get", "shm:hung-1/t"]);
    assert_eq!((ended.code, ended.error.lines().count()), (Some(5), 1), "{ended:?}");
    assert!(ended.error.contains("kill -CONT"), "{ended:?}");

    stopped.iter().for_each(|publisher| publisher.signal(Signal::CONT));
    wait_until("life", || place.list(&[]).iter().all(|row| row["state"] == "live"));
}

/// Heartbeats read before both were stopped prove nothing afterwards. (The reader may resume first: unit tests of the program
/// cover that, and that `list` asks twice.)
#[test]
fn publisher_stopped_together_with_the_reader_is_not_hung() {
    let place = Place::new();
    let mut publisher = place.publish("shm:p/t");
    publisher.write("one");
    let watch = place.start(&["watch", "shm:p/t", "--count", "2"]);
    watch.line();
    for process in [&watch, &publisher] {
        process.signal(Signal::STOP);
        wait_until("the stop", || is_stopped(process.process()));
    }
    wait_until("a still heart", || place.list(&[])[0]["state"] == "hung");
    publisher.signal(Signal::CONT);
    wait_until("life", || place.list(&[])[0]["state"] == "live");
    watch.signal(Signal::CONT);
    publisher.write("next");
    watch.line();
    assert_eq!(watch.end().printed(), "");
}

#[test]
fn killed_publisher_is_gone() {
    let place = Place::new();
    let publisher = place.publish("shm:p/t");
    publisher.signal(Signal::KILL);
    publisher.end();
    let rows = place.list(&[]);
    assert_eq!((rows.len(), rows[0]["state"].as_str()), (1, Some("gone")));
    let ended = place.run(&["list", "shm:p"]);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(6), 2), "{ended:?}");
    place.run(&["get", "shm:p/t"]).assert_failure(6, &["shm:p/t", "gone"]);
}

#[test]
fn refusal_of_a_publisher_is_reported() {
    let place = Place::new();
    let node = place.node("p");
    let _publisher = node.state_publisher::<u8>("t").slots(2).open().unwrap();
    let subscribers = (0..limits::PUSH_SUBSCRIBERS_MAX)
        .map(|_| node.state_subscriber::<u8>("shm:p/t").push().open().unwrap())
        .collect::<Vec<_>>();
    let ended = place.run(&["watch", "shm:p/t", "--delivery", "push"]);
    ended.assert_failure(4, &["shm:p/t", "256 push subscribers"]);
    drop(subscribers);
}

/// A foreign listener at a node's socket does not disturb the listing, and its bytes are not trusted.
#[test]
fn node_that_sends_nonsense_is_reported_beside_the_listing() {
    let place = Place::new();
    let (_odd, _good) = (place.node("odd"), place.node("good"));
    let path = place.path().join("odd.sock");
    std::fs::remove_file(&path).unwrap();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    std::thread::spawn(move || {
        // Closing a connection could overtake what was sent on it.
        let mut open = Vec::new();
        while let Ok(connection) = rustix::net::accept(&socket) {
            // The peer may be gone.
            let _ = rustix::net::send(&connection, &[0x5a; 64], SendFlags::NOSIGNAL);
            open.push(connection);
        }
    });
    let parts = ["shm:odd", "0x5a5a5a5a"];
    let ended = place.run(&["list", "--json"]);
    assert_eq!((ended.code, ended.error.lines().count()), (Some(0), 1), "{ended:?}");
    assert!(parts.iter().all(|part| ended.error.contains(part)), "{ended:?}");
    let row = |node| format!(r#"{{"node":"{node}","topic":null,"kind":null,"type":null,"sequence":null,"#);
    let rest = "\"age_ns\":null,\"state\":\"live\",\"slowest_lag\":null}\n";
    assert_eq!(ended.out, format!("{}{rest}{}{rest}", row("good"), row("odd")));
    place.run(&["list", "shm:odd"]).assert_failure(3, &parts);
    assert_eq!(place.run(&["get", "shm:odd/t"]).code, Some(3));
}

/// Starts the program by a shell that first does this.
fn run_after(place: &Place, first: &str, arguments: &str) -> Ended {
    let mut shell = assert_cmd::Command::new("sh");
    shell.env("FABRICAST_RUNTIME_DIR", place.path()).env_remove("RUST_LOG");
    // What the tests inherited counts toward a limit on descriptors.
    let inherited = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    let script = format!("{inherited}; {first}; exec {} {arguments}", env!("CARGO_BIN_EXE_fabricast"));
    let output = shell.arg("-c").arg(script).timeout(RUN_MAX).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
}

#[test]
fn listing_short_of_descriptors_reports_it_once() {
    let place = Place::new();
    let nodes: Vec<_> = (0..30).map(|number| place.node(&format!("node-{number:02}"))).collect();
    let ended = run_after(&place, "ulimit -n 8", "list");
    assert_eq!((ended.code, ended.error.lines().count()), (Some(7), 1), "{ended:?}");
    assert!(ended.error.contains("8 open files") && ended.error.contains("ulimit -n"), "{ended:?}");
    assert!(ended.error.matches("shm:node-").count() >= 1 || ended.out.is_empty(), "{ended:?}");
    drop(nodes);
}

/// Whichever step fails, the error names the subscriber's limit and does not blame the publisher.
#[test]
fn subscriber_short_of_descriptors_blames_its_own_limit() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u8>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    for verb in ["get n/t", "watch n/t --count 1 --delivery push"] {
        let is_enough = |limit: &i32| {
            let ended = run_after(&place, &format!("ulimit -n {limit}"), verb);
            if ended.code != Some(0) {
                assert!(ended.code == Some(7) && !ended.error.contains("publisher"), "{ended:?}");
                ended.assert_failure(7, &[&format!("{limit} open files"), "ulimit -n"]);
            }
            ended.code == Some(0)
        };
        assert!((4..30).find(is_enough).is_some_and(|limit| limit > 8), "{verb}");
    }
}

#[test]
fn limit_on_the_length_of_files_is_reported() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u8>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    for verb in ["pub me/t", "pub me/t --kind log", "watch n/t --count 1 --delivery push"] {
        run_after(&place, "ulimit -f 1", verb).assert_failure(7, &["ulimit -f"]);
    }
    run_after(&place, "ulimit -f 0", "pub me/t").assert_failure(7, &["me.node", "ulimit -f"]);
    assert_eq!(run_after(&place, "ulimit -f 0", "get n/t").printed(), "1\n");
}

#[test]
fn foreign_file_in_place_of_an_entry_is_named() {
    let place = Place::new();
    let _node = place.node("n");
    std::os::unix::fs::symlink("/dev/zero", place.path().join("x.node")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, place.path().join("y.node"), fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    std::fs::create_dir(place.path().join("z.node")).unwrap();
    for name in ["x", "y", "z"] {
        let path = place.path().join(format!("{name}.node"));
        let ended = place.run(&["pub", &format!("{name}/t")]);
        ended.assert_failure(7, &[path.to_str().unwrap()]);
        assert!(!ended.error.contains("FABRICAST_RUNTIME_DIR"), "the directory is right: {ended:?}");
        place.run(&["get", &format!("{name}/t")]).assert_failure(3, &[&format!("shm:{name}")]);
    }
    assert_eq!(place.list(&[]).iter().map(|row| row["node"].as_str().unwrap()).collect::<Vec<_>>(), ["n"]);
}

#[test]
fn symbolic_link_as_runtime_directory_is_refused() {
    let (place, other) = (Place::new(), Place::new());
    let link = other.path().join("link");
    std::os::unix::fs::symlink(place.path(), &link).unwrap();
    let (link, to) = (link.to_str().unwrap(), place.path().to_str().unwrap());
    for verb in [&["list"][..], &["pub", "me/t"], &["get", "me/t"]] {
        let ended = place.run(&[verb, &["--runtime-dir", link]].concat());
        ended.assert_failure(7, &[link, "symbolic link", to, "FABRICAST_RUNTIME_DIR"]);
    }
}

#[test]
fn topic_that_ends_without_a_value_is_no_result() {
    let place = Place::new();
    let node = place.node("n");
    for verb in
        [&["get", "n/t", "--wait", "1h"][..], &["watch", "n/t", "--until-end"], &["hz", "n/t", "--until-end"]]
    {
        let publisher = node.state_publisher::<u8>("t").open().unwrap();
        let running = place.start(verb);
        let is_set = || catches(running.process(), Signal::INT) && publisher.pull_subscribers() == 1;
        wait_until("the subscriber", is_set);
        drop(publisher);
        // A machine that stalls may have it say more.
        let ended = running.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.error.contains("shm:n/t"), "{ended:?}");
    }
}

#[test]
fn shortage_of_this_host_exits_with_7() {
    let place = Place::new();
    let node = place.node("n");
    let mut publisher = node.state_publisher::<u8>("t").open().unwrap();
    publisher.publish(&1).unwrap();
    for arguments in ["list", "info n/t", "get n/t", "watch n/t --count 1", "--help", "--version"] {
        let ended = run_after(&place, "exec >/dev/full", arguments);
        assert_eq!((ended.code, ended.error.lines().count()), (Some(7), 1), "{arguments}: {ended:?}");
        assert!(
            ended.error.contains("standard output") && ended.error.contains("(os error 28)"),
            "{ended:?}"
        );
    }
    let ended = run_after(&place, "ulimit -n 4", "get n/t");
    assert_eq!((ended.code, ended.error.lines().count()), (Some(7), 1), "{ended:?}");
    assert!(ended.error.contains("4 open files"), "{ended:?}");
    let ended = place.run(&["pub", "me/t", "--runtime-dir", "/proc/no/such"]);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    assert!(ended.error.contains("/proc/no/such"));
}

#[test]
fn wait_ended_by_ctrl_c_is_not_an_answer() {
    let place = Place::new();
    let node = place.node("n");
    let publisher = node.state_publisher::<u8>("t").open().unwrap();
    let get = place.start(&["get", "n/t", "--wait", "1h"]);
    wait_until("the handler", || catches(get.process(), Signal::INT) && publisher.pull_subscribers() == 1);
    get.signal(Signal::INT);
    get.end().assert_nothing(130);
}

#[test]
fn closed_pipe_is_noticed_without_values() {
    let place = Place::new();
    let node = place.node("n");
    let _state = node.state_publisher::<u8>("s").open().unwrap();
    let _log = node.log_publisher::<u8>("l").open().unwrap();
    let verbs: [&[&str]; 4] = [
        &["watch", "n/s"],
        &["watch", "n/s", "--delivery", "push", "--json"],
        &["tail", "n/l", "--follow"],
        &["get", "n/s", "--wait", "1h"],
    ];
    for arguments in verbs {
        place.start_unread(arguments).end().assert_nothing(0);
    }
}

#[test]
fn advice_fits_the_command() {
    let place = Place::new();
    let parts = ["--rdma-connect", "`fabricast watch --delivery push`", "`fabricast tail --push`"];
    for verb in ["info", "get", "watch", "tail", "hz"] {
        let arguments = [verb, "rdma://127.0.0.1/t", "--rdma-connect", "tcp-unreliable"];
        place.run(&arguments).assert_failure(2, &parts);
    }
}
