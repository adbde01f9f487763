//! How many sessions `pub` serves.

use rustix::process::Signal;

use crate::support::{Place, wait_until};

#[test]
fn publisher_serves_as_many_sessions_as_it_is_told() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:few/t", "--sessions", "4", "--quiet"]);
    publisher.write("first");
    let get = || place.run(&["get", "shm:few/t"]);
    wait_until("the value", || get().code == Some(0));
    let watches = [(); 4].map(|()| place.start(&["watch", "shm:few/t"]));
    for watch in &watches {
        assert!(watch.line().contains("first"));
    }
    get().assert_failure(4, &["of its 4 places for sessions on its host", "fabricast pub --sessions"]);
    watches[0].signal(Signal::KILL);
    wait_until("a place", || get().code == Some(0));
}

#[test]
fn one_process_has_as_many_sessions_as_it_is_told() {
    let place = Place::new();
    let mut publisher = place.start(&["pub", "shm:few/t", "--sessions-per-peer", "1", "--quiet"]);
    publisher.write("first");
    wait_until("the value", || place.run(&["get", "shm:few/t"]).code == Some(0));
    let nodes = [(); 2].map(|()| fabricast::Node::builder().runtime_dir(place.path()).open().unwrap());
    let _first = nodes[0].state_subscriber::<String>("shm:few/t").open().unwrap();
    let error = nodes[1].state_subscriber::<String>("shm:few/t").open().unwrap_err();
    let error = fabricast::ErrorChain(&error).to_string();
    assert!(error.contains("has 1 sessions with it") && error.contains("--sessions-per-peer"), "{error}");
    // Other processes have places of their own.
    assert_eq!(place.run(&["get", "shm:few/t"]).code, Some(0));
}

#[test]
fn publisher_that_cannot_serve_so_many_sessions_says_how_many() {
    let place = Place::new();
    let script = "ulimit -n 256; exec \"$@\"";
    let fabricast = place.command(&["pub", "shm:few/t", "--sessions", "4096", "--linger", "0"]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).arg(fabricast.get_program()).args(fabricast.get_args());
    command.envs(fabricast.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("serves 80 sessions of this host, not 4096") && said.contains("ulimit -n"),
        "{said}"
    );
    for wrong in ["3", "4097", "many"] {
        let ended = place.run(&["pub", "shm:few/t", "--sessions", wrong]);
        assert!(ended.code == Some(2) && ended.error.contains("--sessions"), "{ended:?}");
    }
}
