//! Publishers whose repositories outlive them: killed while they publish, started again, and found by subscribers that lose nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fabricast::{
    FeedUpdate, LogStart, LogSubscriber, Node, PublisherError, ReceiveError, RepositoryFile,
    RepositoryFileError, StateSubscriber, TableSubscriber,
};

use self::support::long::is_long;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::wait_until;
use self::support::warm::{self, Source, memory, play};

#[cfg(test)]
mod support;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let node = Node::builder().name("p").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    play(&role, &node);
}

fn followers_lose_nothing(kind: &str) {
    let rounds = if is_long() { 100 } else { 12 };
    warm::followers_lose_nothing(kind, "shm:p/t", rounds, |round| 100 + 37 * (round % 7));
}

#[test]
fn subscribers_of_a_state_lose_nothing_when_its_publisher_is_killed() {
    followers_lose_nothing("state");
}

#[test]
fn subscribers_of_a_log_lose_nothing_when_its_publisher_is_killed() {
    followers_lose_nothing("log");
}

#[test]
fn subscribers_of_a_table_lose_nothing_when_its_publisher_is_killed() {
    followers_lose_nothing("table");
}

#[test]
fn subscribers_of_a_feed_lose_nothing_when_its_publisher_is_killed() {
    followers_lose_nothing("feed");
}

/// A node, and a file for its topics.
struct Place {
    node: Node,
    path: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

fn place() -> Place {
    let (dir, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let node = Node::builder().name("p").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let path = memory.path().join("t");
    Place { node, path, _dirs: [dir, memory] }
}

fn refused<P>(opened: Result<P, PublisherError>) -> RepositoryFileError {
    match opened {
        Ok(_) => panic!("it is opened"),
        Err(PublisherError::File(error)) => error,
        Err(error) => panic!("{error}"),
    }
}

/// The topic of one publisher goes on in the same process, too.
#[test]
fn history_and_epoch_stay() {
    let place = place();
    let open = || place.node.log_publisher::<u64>("t").warm(&place.path).open().expect("a topic");
    let mut first = open();
    (1..=5).for_each(|number| assert_eq!(first.publish(&number).expect("it fits").get(), number));
    let epoch = first.epoch();
    drop(first);
    let mut second = open();
    assert_eq!((second.epoch(), second.newest().get()), (epoch, 5));
    assert_eq!(second.publish(&6).expect("it fits").get(), 6);
    let mut late = place.node.log_subscriber::<u64>("shm:p/t").earliest().open().expect("a subscriber");
    let mut last_ns = 0;
    for number in 1..=6 {
        let sample = late.try_receive().expect("no loss").expect("a record");
        assert_eq!((sample.value, sample.meta.sequence.get()), (number, number));
        assert!(sample.meta.published_ns >= last_ns, "time stamps do not go back");
        last_ns = sample.meta.published_ns;
    }
    drop(second);
    let state = std::fs::metadata(&place.path).expect("the file stays");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&state.permissions()) & 0o777, 0o600);
}

#[test]
fn other_repositories_are_refused_with_both_sides() {
    let Place { node, path, .. } = &place();
    drop(node.log_publisher::<u64>("t").capacity(1 << 16).warm(path).open().expect("a topic"));
    let text = |error: RepositoryFileError| {
        assert!(matches!(error, RepositoryFileError::Differs { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("remove the file") && text.contains(&path.display().to_string()), "{text}");
        text
    };
    let has = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    has(text(refused(node.log_publisher::<u64>("other").warm(path).open())), &["topic t", "topic other"]);
    has(text(refused(node.state_publisher::<u64>("t").warm(path).open())), &["a log", "a state"]);
    has(text(refused(node.log_publisher::<u32>("t").capacity(1 << 16).warm(path).open())), &["u64", "u32"]);
    has(
        text(refused(node.log_publisher::<u64>("t").capacity(1 << 17).warm(path).open())),
        &["65536", "131072"],
    );
    let epoch = fabricast::Epoch::new(7).expect("not zero");
    let other_epoch = node.log_publisher::<u64>("t").capacity(1 << 16).epoch(epoch).warm(path).open();
    has(text(refused(other_epoch)), &["epoch 0000000000000007"]);
    let same = node.log_publisher::<u64>("t").capacity(1 << 16).warm(path).open().expect("the same topic");
    assert_eq!(same.newest().get(), 0);
}

#[test]
fn file_in_use_names_its_process() {
    let Place { node, path, _dirs, .. } = &place();
    let dir = tempfile::tempdir().expect("a directory");
    let publisher = Peer::ready("publisher", dir.path(), &format!("log {}", path.display()));
    let error = refused(node.log_publisher::<u64>("t").warm(path).open());
    assert!(matches!(error, RepositoryFileError::InUse { .. }), "{error:?}");
    let process = publisher.pid().as_raw_nonzero();
    assert!(error.to_string().contains(&format!("process {process}")), "{error}");
    let mut publisher = publisher;
    publisher.kill();
    wait_until("the lock", || Source::open(node, "log", path).newest() == 0);
}

/// Puts another file there. The node may still read the memory of the one before, for a moment after its publisher was dropped: it must
/// not be cut.
fn replace(path: &Path, content: &[u8]) {
    std::fs::remove_file(path).expect("a file");
    std::fs::write(path, content).expect("a file");
}

#[test]
fn unfit_files_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Place { node, path, .. } = &place();
    let open = |path: &Path| refused(node.state_publisher::<u64>("t").warm(path).open());
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let error = open(&disk.path().join("t"));
    assert!(matches!(error, RepositoryFileError::NotTmpfs { .. }), "{error:?}");
    assert!(matches!(open(&path.join("nowhere")), RepositoryFileError::System { .. }));

    std::fs::write(path, "no repository").expect("a file");
    assert!(matches!(open(path), RepositoryFileError::Length { .. }));
    std::fs::write(path, vec![7; 4096]).expect("a file");
    assert!(matches!(open(path), RepositoryFileError::Header { .. }));
    std::fs::remove_file(path).expect("a file");
    std::os::unix::fs::symlink("elsewhere", path).expect("a link");
    assert!(matches!(open(path), RepositoryFileError::Unfit { .. }));
    std::fs::remove_file(path).expect("a file");

    let mut state = node.state_publisher::<u64>("t").warm(path).open().expect("a topic");
    state.publish(&1).expect("it fits");
    drop(state);
    let whole = std::fs::read(path).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o622)).expect("it is ours");
    assert!(matches!(open(path), RepositoryFileError::Unfit { .. }));
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    for len in [0, 100, 200, 4096, whole.len() - 1] {
        replace(path, &whole[..len]);
        let error = open(path);
        assert!(matches!(error, RepositoryFileError::Length { .. }), "{len} {error:?}");
        assert!(RepositoryFile::open(path).is_err());
    }
    // Of another release: the version of its layout follows the magic.
    let mut later = whole.clone();
    let magic = later.windows(8).position(|bytes| bytes == b"FBCREPO1").expect("a header");
    later[magic + 8] += 1;
    replace(path, &later);
    for error in [open(path), RepositoryFile::open(path).expect_err("another layout")] {
        assert!(matches!(error, RepositoryFileError::Header { .. }), "{error:?}");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        let versions = [u16::from(later[magic + 8]), u16::from(whole[magic + 8])];
        assert!(versions.iter().all(|version| cause.contains(&version.to_string())), "{cause}");
    }
    // The slot of the first value.
    let mut damaged = whole.clone();
    let slot = (0x900..damaged.len()).step_by(8).find(|at| damaged[*at] != 0).expect("a value");
    damaged[slot + 0x20] ^= 1;
    replace(path, &damaged);
    let error = open(path);
    assert!(matches!(error, RepositoryFileError::Damaged { .. }), "{error:?}");
    replace(path, &whole);
    let state = node.state_publisher::<u64>("t").warm(path).open().expect("the topic");
    assert_eq!(state.newest().get(), 1);
}

#[test]
fn full_tmpfs_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let mount = |command: &str, arguments: &[&str]| {
        let path = dir.path().to_str().expect("a name");
        let status = std::process::Command::new(command).args(arguments).arg(path).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount("mount", &["-t", "tmpfs", "-o", "size=256k", "none"]) {
        return support::skip::skip("mounts", "a tmpfs of limited size cannot be mounted: it takes root");
    }
    let Place { node, .. } = &place();
    let path = dir.path().join("t");
    let error = refused(node.log_publisher::<u64>("t").capacity(1 << 20).warm(&path).open());
    let is_full = matches!(&error, RepositoryFileError::System { source, .. }
        if source.kind() == std::io::ErrorKind::StorageFull);
    let left = std::fs::read_dir(dir.path()).expect("a directory").count();
    assert!(mount("umount", &[]));
    assert!(is_full, "{error:?}");
    assert_eq!(left, 0, "nothing is left of it");
}

#[test]
fn feed_that_was_killed_while_its_files_were_made_begins_anew() {
    let Place { node, path, .. } = &place();
    let open = || node.feed_publisher::<u64, u64, u64>("t").capacity(8).warm(path).open();
    drop(open().expect("a feed"));
    std::fs::remove_file(path).expect("a file");
    let mut feed = open().expect("a feed");
    feed.publish(&1, &2, &3).expect("it fits");
    drop(feed);
    std::fs::remove_file(path).expect("a file");
    assert!(matches!(refused(open()), RepositoryFileError::Half { .. }));
}

#[test]
fn file_is_read_without_its_publisher() {
    let Place { node, path, .. } = &place();
    let at = |kind: &str| path.with_extension(kind);
    let mut sources =
        ["state", "log", "table", "feed"].map(|kind| Source::named(node, kind, kind, &at(kind)));
    let newest = sources.each_mut().map(|source| (0..40).map(|_| source.publish()).last().expect("some"));
    for is_live in [true, false] {
        let files =
            ["state", "log", "table", "feed"].map(|kind| RepositoryFile::open(at(kind)).expect("a file"));
        assert!(files.iter().all(|file| file.is_live() == is_live));
        let [state_file, log_file, table_file, feed_file] = &files;
        let ends = |end: ReceiveError, newest: u64| {
            assert!(matches!(end, ReceiveError::Ended { published } if published.get() == newest), "{end}");
        };
        let mut state: StateSubscriber<u64> = state_file.state_subscriber().expect("a state");
        assert_eq!(state.try_receive().expect("whole").expect("a value").value, newest[0]);
        let mut log: LogSubscriber<u64> = log_file.log_subscriber(LogStart::Earliest).expect("a log");
        for sequence in 1..=newest[1] {
            assert_eq!(log.try_receive().expect("whole").expect("a record").value, sequence);
        }
        let mut table: TableSubscriber<u64, u64> = table_file.table_subscriber().expect("a table");
        let mut held = BTreeMap::new();
        while let Ok(Some(change)) = table.try_change() {
            held.insert(change.key, change.value.expect("no key is removed"));
        }
        let expected: BTreeMap<_, _> = (1..=newest[2]).map(|sequence| (sequence % 20, sequence)).collect();
        assert_eq!(held, expected);
        let mut feed = feed_file.feed_subscriber::<u64, u64, u64>().expect("a feed");
        let mut values = BTreeMap::new();
        while let Ok(Some(update)) = feed.try_update() {
            let FeedUpdate::Value(value) = update else { panic!("{update:?}") };
            values.insert(value.key, value.value.expect("no key is removed"));
        }
        assert_eq!(values.len(), 20);
        assert_eq!(values.values().max(), Some(&newest[3]));
        if is_live {
            assert!(
                state.try_receive().expect("no end").is_none()
                    && log.try_receive().expect("no end").is_none()
            );
        } else {
            ends(state.try_receive().expect_err("the end"), newest[0]);
            ends(log.try_receive().expect_err("the end"), newest[1]);
            ends(table.try_change().expect_err("the end"), newest[2]);
        }
        let other = state_file.log_subscriber::<u64>(LogStart::Earliest).expect_err("another kind");
        assert!(matches!(other, RepositoryFileError::Differs { .. }));
        assert!(state_file.state_subscriber::<String>().is_err());
        if is_live {
            sources.iter_mut().for_each(Source::end);
        }
    }
}
