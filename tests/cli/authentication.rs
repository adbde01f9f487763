//! Key files: every verb takes them, and a node that demands another key is exit code 4.

use std::os::unix::fs::PermissionsExt;

use super::support::{Place, wait_until};

/// Runs `fabricast key` with these arguments, and puts its lines into a file that only its owner can read.
fn key_file(place: &Place, name: &str, lines: &[String]) -> String {
    let path = place.path().join(name);
    std::fs::write(&path, lines.concat()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn new_key(place: &Place, arguments: &[&str]) -> String {
    place.run(&[&["key"], arguments].concat()).printed().to_owned()
}

#[test]
fn node_with_a_key_file_is_read_with_the_same_key_only() {
    read_with_the_same_key_only("shm:quotes");
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn node_with_a_key_file_is_read_over_rdma_with_the_same_key_only() {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    read_with_the_same_key_only(&format!("rdma://{host}:7793"));
}

fn read_with_the_same_key_only(node: &str) {
    let place = Place::new();
    let (topic, other_topic) = (format!("{node}/md"), format!("{node}/other"));
    let desk = new_key(&place, &["desk", "--topics", "md"]);
    let keys = key_file(&place, "keys", std::slice::from_ref(&desk));
    let mut publisher = place.start(&["pub", &topic, "--key-file", &keys, "--quiet"]);
    publisher.write("sunny");
    let list = ["list", node, "--json", "--key-file", &keys];
    wait_until("the value", || place.run(&list).out.contains("\"sequence\":1"));

    let with_key = |arguments: &[&str]| place.run(&[arguments, &["--key-file", &keys]].concat());
    assert_eq!(with_key(&["get", &topic]).printed(), "\"sunny\"\n");
    assert!(with_key(&["info", &topic]).printed().contains(&format!("topic             {topic}")));
    assert!(with_key(&["watch", &topic, "--count", "1"]).printed().contains("sunny"));

    let other = key_file(&place, "other", &[new_key(&place, &["desk"])]);
    let advice = ["it admits only nodes that prove one of its keys", "--key-file"];
    for key in [&[][..], &["--key-file", &other]] {
        for verb in ["get", "info", "watch", "tail", "hz"] {
            place.run(&[&[verb, &topic], key].concat()).assert_failure(4, &advice);
        }
        place.run(&[&["list", node], key].concat()).assert_failure(4, &advice);
    }
    // Another topic, there or not.
    with_key(&["get", &other_topic]).assert_failure(4, &["covers other"]);
}

#[test]
fn keys_are_made_and_bad_key_files_are_refused() {
    let place = Place::new();
    let made = new_key(&place, &["engine", "--rights", "publish,read", "--topics", "a,b"]);
    let [name, rights, topics, secret] = made.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{made}")
    };
    assert_eq!((name, rights, topics, secret.len()), ("engine", "read,publish", "a,b", 64));
    assert_ne!(made, new_key(&place, &["engine", "--rights", "read,publish", "--topics", "a,b"]));
    place.run(&["key", "a:b"]).assert_failure(2, &["the name must have"]);
    place.run(&["key", "k", "--topics", "../x"]).assert_failure(2, &["topics"]);
    for name in ["a b", "", "#x"] {
        place.run(&["key", name]).assert_failure(2, &[&format!("{name:?} is not a name of a key")]);
    }
    place.run(&["key", "k", "--topics", "a b"]).assert_failure(2, &["\"a b\" are not topics"]);
    let bad = key_file(&place, "bad", &["k read md secret\n".to_owned()]);
    let ended = place.run(&["get", "shm:quotes/md", "--key-file", &bad]);
    ended.assert_failure(7, &[&format!("{bad} cannot be used: line 1 of the keyring: the secret must be")]);
    assert_eq!(ended.error.matches("the secret must be").count(), 1, "{ended:?}");

    let path = key_file(&place, "keys", &[made]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let get = |path: &str| place.run(&["get", "shm:quotes/md", "--key-file", path]);
    std::fs::write(place.path().join("there"), "").unwrap();
    let publish = |path: &str| place.run(&["pub", "shm:quotes/md", "--key-file", path]);
    publish(&path).assert_failure(7, &["mode 0640", "chmod 600"]);
    publish(&key_file(&place, "short", &["desk read * 1234".to_owned()]))
        .assert_failure(7, &["line 1", "64 hexadecimal"]);
    publish("/nowhere/keys").assert_failure(7, &["cannot read the keyring /nowhere/keys"]);
    assert_ne!(get(&path).code, Some(0));
}

#[test]
fn networks_and_groups_that_are_none_are_wrong_arguments() {
    let place = Place::new();
    let publish = |arguments: &[&str]| place.run(&[&["pub", "shm:quotes/md"], arguments].concat());
    for network in ["10.0.0.7/24", "host", "10.0.0.0/24,"] {
        publish(&["--allow", network]).assert_failure(2, &["is not a network", "10.0.0.0/24"]);
    }
    publish(&["--insecure"]).assert_failure(2, &["--insecure is for a node that listens over RDMA"]);
    let ended = publish(&["--shm-group", "no-such-group"]);
    assert!(
        ended.code == Some(2) && ended.error.contains("/etc/group has no group of this name"),
        "{ended:?}"
    );
}

/// As root's it is given to any group, otherwise to the first of this user's.
#[test]
fn node_is_opened_to_a_group_by_its_name() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let own = rustix::process::getegid().as_raw();
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    let name = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2)?.parse() == Ok(own)).then(|| fields[0].to_owned())
    };
    let name = groups.lines().find_map(name).unwrap_or_else(|| own.to_string());
    let mut publisher = place.start(&["pub", "shm:quotes/md", "--shm-group", &name, "--quiet"]);
    publisher.write("sunny");
    wait_until("the value", || place.run(&["list", "shm:quotes", "--json"]).out.contains("\"sequence\":1"));
    let socket = std::fs::metadata(place.path().join("quotes.sock")).unwrap();
    assert_eq!((socket.gid(), socket.mode() & 0o777), (own, 0o660));
}

#[test]
fn what_keeps_a_group_from_reading_a_topic_is_told_at_once() {
    let (place, memory) = (Place::new(), tempfile::tempdir_in("/dev/shm").unwrap());
    // Not of TMPDIR, which may be closed to others.
    let parent = tempfile::tempdir_in("/tmp").unwrap();
    let group = rustix::process::getegid().as_raw().to_string();
    let (directory, file) = (parent.path().join("nodes"), memory.path().join("file"));
    let options = ["--shm-group", &group, "--runtime-dir", directory.to_str().unwrap()];
    let publish = |more: &[&str]| {
        place.run_with_input(&[&["pub", "q/t", "--quiet"], &options[..], more].concat(), "one\n")
    };
    let above = parent.path().canonicalize().unwrap();
    std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o700)).unwrap();
    let obstacle = format!(
        "fabricast: members of group {group} do not reach the node: {} (mode 0700) does not let them pass",
        above.display()
    );
    let ended = publish(&[]);
    assert!(ended.code == Some(0) && ended.error.starts_with(&obstacle), "{ended:?}");
    std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o710)).unwrap();
    publish(&[]).assert_nothing(0);
    let ended = publish(&["--warm", file.to_str().unwrap()]);
    assert!(ended.error.contains("cannot pull the topic from the file of --warm"), "{ended:?}");
    assert_eq!((ended.code, ended.error.lines().count()), (Some(0), 1), "{ended:?}");
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn host_that_is_not_allowed_is_refused_over_rdma() {
    let place = Place::new();
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let (closed, open) = (format!("rdma://{host}:7791/t"), format!("rdma://{host}:7792/t"));
    let mut publishers = [(&closed, "192.0.2.0/24".to_owned()), (&open, format!("192.0.2.0/24,{host}"))].map(
        |(target, networks)| place.start(&["pub", target, "--insecure", "--allow", &networks, "--quiet"]),
    );
    publishers.iter_mut().for_each(|publisher| publisher.write("sunny"));
    wait_until("the value", || place.run(&["get", &open]).out == "\"sunny\"\n");
    let sentence = format!("{host} is in no network that the listening node allows");
    for verb in ["get", "watch"] {
        place.run(&[verb, &closed]).assert_failure(4, &[&sentence, "--allow"]);
    }
}

#[cfg(feature = "verbs")]
#[test]
fn listening_beyond_the_host_needs_a_key_file_or_a_word() {
    let place = Place::new();
    let parts = ["rdma://192.0.2.1:7471", "--key-file", "--insecure"];
    let refused = place.run(&["pub", "rdma://192.0.2.1/t"]);
    refused.assert_failure(2, &parts);
    assert!(!refused.error.contains("NodeBuilder"), "{refused:?}");
    // A process that measures listens for further subscribers.
    let several = ["perf", "pull", "--connect", "rdma://192.0.2.1", "--subscribers", "2"];
    place.run(&several).assert_failure(2, &parts[1..]);
    let keys = key_file(&place, "keys", &[new_key(&place, &["desk"])]);
    let both = place.run(&["pub", "rdma://192.0.2.1/t", "--insecure", "--key-file", &keys]);
    assert_eq!(both.code, Some(2), "{both:?}");
    // No device has that address: the node was to be opened.
    for word in [&["--insecure"][..], &["--key-file", &keys]] {
        let ended = place.run(&[&["pub", "rdma://192.0.2.1/t"], word].concat());
        assert!(ended.code.is_some_and(|code| code != 2 && code != 0), "{ended:?}");
    }
}
