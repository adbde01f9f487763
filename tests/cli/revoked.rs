//! Commands that lose their access while they run.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Place, json as parsed, wait_until};

/// Writes the keyring of a publisher, in place of the one before.
fn replace(path: &Path, lines: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, lines).expect("a file");
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    std::fs::rename(&next, path).expect("a file");
}

#[test]
fn command_whose_key_is_removed_says_so_and_goes_on_or_exits() {
    let place = Place::new();
    let made = |name: &str| place.run(&["key", name]).printed().to_owned();
    let (removed, kept) = (made("removed"), made("kept"));
    let [server, client] = ["server", "client"].map(|name| place.path().join(name));
    replace(&server, &(removed.clone() + &kept));
    replace(&client, &removed);
    let [server_text, client_text] = [&server, &client].map(|path| path.to_str().expect("plain"));
    let publish = ["pub", "shm:p/t", "--quiet", "--kind", "log", "--key-file", server_text];
    let mut publisher = place.start(&publish);
    let list = ["list", "shm:p", "--json", "--key-file", client_text];
    wait_until("the topic", || place.run(&list).out.contains("\"t\""));
    let follow = |options: &[&str]| {
        let tail = ["tail", "shm:p/t", "--key-file", client_text, "--follow", "--earliest"];
        place.start(&[&tail, options].concat())
    };
    let (staying, json, ending) = (follow(&[]), follow(&["--json"]), follow(&["--until-end"]));
    publisher.write("one");
    for running in [&staying, &json, &ending] {
        assert!(running.line().contains("\"one\""));
    }
    replace(&server, &kept);
    let line = staying.error_line();
    assert!(
        line.starts_with("fabricast: shm:p/t: the publisher does not admit this subscriber any more: ")
            && line.ends_with("; trying again, in case it is restored"),
        "{line}"
    );
    let line = staying.error_line();
    assert!(line.contains("cannot continue with the publisher that was found"), "{line}");
    let event = parsed(&json.line());
    assert_eq!((event["event"].as_str(), event["reason"].as_str()), (Some("lost"), Some("refused")));
    let ended = ending.end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(
        ended.error.contains("shm:p/t: the publisher does not admit this subscriber any more: "),
        "{ended:?}"
    );

    // A file that cannot be used revokes nobody, and its publisher says so once.
    replace(&server, "");
    let line = publisher.error_line();
    let why =
        format!("{server_text} cannot be used: the keyring has no key: make one with `fabricast key`: ");
    assert!(
        line.ends_with("the previous keys stay in force, and nobody is revoked") && line.contains(&why),
        "{line}"
    );

    // Its key is there again.
    replace(&server, &(removed + &kept));
    publisher.write("two");
    assert!(staying.line().contains("\"two\""));
}
