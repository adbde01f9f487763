//! Nodes that do not see each other's processes, as in containers of one host that share a runtime directory. Root has to run these tests.

use std::process::Command;

use fabricast::{Delivery, Keyring, Node};

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::PATIENCE;

#[cfg(test)]
mod support;

/// Why this process cannot start others in namespaces of their own, if so.
fn hindrance() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root makes namespaces of processes".to_owned());
    }
    match Command::new("unshare").args(["--pid", "--fork", "--kill-child", "--", "true"]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Publishes in one container, and receives in another one and outside.
#[test]
fn publisher_and_subscribers_of_different_containers_find_each_other() {
    if let Some(why) = hindrance() {
        return skip("process-namespaces", &why);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let secret = "07".repeat(32);
    for arguments in ["", secret.as_str()] {
        let mut publisher = Peer::start_contained("publisher", dir.path(), arguments);
        assert_eq!(publisher.hear(), "ready");
        let mut subscribers = [
            Peer::start_contained("subscriber", dir.path(), arguments),
            Peer::start("subscriber", dir.path(), arguments),
        ];
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.hear(), "7 7");
            subscriber.tell("receive");
        }
        assert_eq!(publisher.ask("publish"), "4 subscriptions");
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.hear(), "8 8");
        }
        publisher.tell("end");
        assert!(publisher.status().success());
    }
}

/// Entry point of the processes that tests start.
#[test]
#[ignore = "a process in another namespace"]
fn role() {
    let role = Role::of_this_process();
    let mut builder = Node::builder().runtime_dir(&role.dir);
    if role.has_argument(0) {
        builder =
            builder.keys(Keyring::from_text(&format!("desk read * {}", role.argument(0))).expect("a key"));
    }
    if role.name == "publisher" {
        return publish(&role, &builder.name("quotes").expect("a name").open().expect("a node"));
    }
    let node = builder.open().expect("a node");
    let mut both = [Delivery::Pull, Delivery::Push].map(|delivery| {
        let builder = node.state_subscriber::<u64>("shm:quotes/md").delivery(delivery);
        builder.timeout(PATIENCE).open().expect("a subscription")
    });
    loop {
        let values = both.each_mut().map(|subscriber| {
            let sample = subscriber.receive_timeout(PATIENCE).expect("the publisher goes on");
            sample.expect("in time").value.to_string()
        });
        role.say(values.join(" "));
        role.command();
    }
}

fn publish(role: &Role, node: &Node) {
    let mut publisher = node.state_publisher::<u64>("md").open().expect("a topic");
    publisher.publish(&7).expect("it fits");
    role.say("ready");
    role.command();
    let count = publisher.pull_subscribers() + publisher.push_subscribers();
    publisher.publish(&8).expect("it fits");
    role.say(format!("{count} subscriptions"));
    role.command();
}
