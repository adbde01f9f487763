//! The program as its users run it: output, exit codes, signals.
#![cfg(feature = "cli")]

#[cfg(test)]
#[path = "cli/support.rs"]
mod support;

#[cfg(test)]
#[path = "cli/authentication.rs"]
mod authentication;
#[cfg(test)]
#[path = "cli/damaged_lines.rs"]
mod damaged_lines;
#[cfg(test)]
#[path = "cli/feed.rs"]
mod feed;
#[cfg(test)]
#[path = "cli/hung.rs"]
mod hung;
#[cfg(test)]
#[path = "cli/hz.rs"]
mod hz;
#[cfg(test)]
#[path = "cli/lines.rs"]
mod lines;
#[cfg(test)]
#[path = "cli/observe.rs"]
mod observe;
#[cfg(test)]
#[path = "cli/options.rs"]
mod options;
#[cfg(test)]
#[path = "cli/perf.rs"]
mod perf;
#[cfg(test)]
#[path = "cli/perf_wake.rs"]
mod perf_wake;
#[cfg(all(test, feature = "verbs"))]
#[path = "cli/program_peers.rs"]
mod program_peers;
#[cfg(test)]
#[path = "cli/programs.rs"]
mod programs;
#[cfg(test)]
#[path = "cli/publish.rs"]
mod publish;
#[cfg(all(test, feature = "verbs"))]
#[path = "cli/rdma.rs"]
mod rdma;
#[cfg(test)]
#[path = "cli/restarts.rs"]
mod restarts;
#[cfg(test)]
#[path = "cli/revoked.rs"]
mod revoked;
#[cfg(test)]
#[path = "cli/sessions.rs"]
mod sessions;
#[cfg(test)]
#[path = "cli/slow.rs"]
mod slow;
#[cfg(test)]
#[path = "cli/table.rs"]
mod table;
#[cfg(test)]
#[path = "cli/tail.rs"]
mod tail;
#[cfg(test)]
#[path = "cli/timestamps.rs"]
mod timestamps;
#[cfg(test)]
#[path = "cli/trouble.rs"]
mod trouble;
#[cfg(test)]
#[path = "cli/warm.rs"]
mod warm;
#[cfg(test)]
#[path = "cli/watch.rs"]
mod watch;

use support::Place;

#[test]
fn every_help_has_examples() {
    let place = Place::new();
    for verb in ["", "list", "info", "get", "watch", "tail", "hz", "pub", "perf"] {
        let arguments: Vec<&str> = [verb, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let ended = place.run(&arguments);
        assert!(ended.printed().contains("\nExamples:\n  "), "{verb}");
        assert!(ended.printed().contains(&format!("fabricast {verb}")), "{verb}");
    }
}

#[test]
fn the_version_is_printed() {
    let built_in = if cfg!(feature = "verbs") { " +verbs" } else { "" };
    let expected = format!("fabricast {}{built_in}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(Place::new().run(&["--version"]).printed(), expected);
}

#[test]
fn wrong_arguments_exit_with_2() {
    let place = Place::new();
    let wrong: [&[&str]; 16] = [
        &[],
        &["nothing"],
        &["get"],
        &["get", "shm:a/b", "--bogus"],
        &["get", "shm:a/b", "--raw", "--json"],
        &["watch", "shm:a/b", "--count", "0"],
        &["watch", "shm:a/b", "--for", "-1"],
        &["watch", "shm:a/b", "--delivery", "post"],
        &["tail", "shm:a/b", "--last", "1", "--earliest"],
        &["tail", "shm:a/b", "--from", "1", "--last", "1"],
        &["tail", "shm:a/b", "--raw", "--hex"],
        &["tail", "shm:a/b", "--count", "0"],
        &["hz", "shm:a/b", "--for", "x"],
        &["hz"],
        &["pub", "shm:a/b", "--rate", "0"],
        &["pub", "shm:a/b", "--kind", "queue"],
    ];
    for arguments in wrong {
        let ended = place.run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!ended.error.is_empty());
    }
}

#[test]
fn malformed_addresses_are_reported_in_one_line() {
    let place = Place::new();
    let parts = ["\"tcp:quotes\"", "shm:NODE", "rdma://HOST[:PORT]"];
    for verb in ["info", "get", "watch", "tail", "hz", "pub"] {
        place.run(&[verb, "tcp:quotes"]).assert_failure(2, &parts);
        for node in ["quotes", "shm:quotes"] {
            place.run(&[verb, node]).assert_failure(2, &["\"shm:quotes\"", "shm:quotes/TOPIC"]);
        }
    }
    place.run(&["list", "tcp:quotes"]).assert_failure(2, &parts);
}

#[test]
#[cfg(not(feature = "verbs"))]
fn addresses_of_missing_fabrics_are_failures_of_this_host() {
    let place = Place::new();
    let told = |arguments: &[&str]| {
        let ended = place.run(arguments);
        assert_eq!((ended.code, ended.out.as_str()), (Some(7), ""), "{ended:?}");
        assert!(
            ended.error.contains("rdma://host:7471") && ended.error.contains("--features verbs"),
            "{ended:?}"
        );
    };
    told(&["list", "rdma://host"]);
    for verb in ["info", "get", "watch", "tail", "hz", "pub"] {
        told(&[verb, "rdma://host/topic"]);
    }
}

#[test]
fn runtime_directory_is_an_argument_or_from_the_environment() {
    let (place, other) = (Place::new(), Place::new());
    let _node = other.node("elsewhere");
    assert!(place.list(&[]).is_empty());
    assert_eq!(place.list(&["--runtime-dir", other.path().to_str().unwrap()])[0]["node"], "elsewhere");
    let ended = place.run(&["pub", "n/t", "--runtime-dir", "/nowhere/at/all"]);
    assert_eq!(ended.code, Some(7));
    assert!(ended.error.contains("/nowhere/at/all"));
}

#[test]
fn log_goes_to_standard_error_on_request() {
    let place = Place::new();
    let mut publisher = place.start(&["-vv", "pub", "shm:me/t", "--quiet"]);
    support::wait_until("the node", || place.run(&["list", "shm:me"]).code == Some(0));
    assert!(publisher.error_line().contains("fabricast: "));
    publisher.write("value");
    publisher.end_input();
    let ended = publisher.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""));
}
