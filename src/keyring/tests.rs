use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::id::TopicName;
use crate::testkit::skip::skip;

/// The secret of the bytes 0 to 31.
const COUNTING: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

const COUNTING_BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A secret of one byte, repeated.
pub(crate) fn secret(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// The keys of these lines.
pub(crate) fn keys(lines: &str) -> std::sync::Arc<Keys> {
    Keyring::from_text(lines).unwrap().current().0
}

fn topic(name: &str) -> TopicName {
    name.parse().unwrap()
}

fn line_error(line: &str) -> KeyLineError {
    match Keyring::from_text(&format!("# a comment\n\n{line}\n")) {
        Err(KeyringError::Line { line: 3, source }) => source,
        other => panic!("{line}: {other:?}"),
    }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn key_covers_its_topics_and_those_below_them() {
    let lines = format!("desk read md,orders/eu {}\n ops\tread,publish * {}", secret(1), secret(2));
    let keys = keys(&lines);
    let [desk, ops] = &keys.all[..] else { panic!("{keys:?}") };
    let desk = Authority::Proven(vec![std::sync::Arc::clone(desk)]);
    for (name, is_covered) in [
        ("md", true),
        ("md/a/b", true),
        ("mdx", false),
        ("m", false),
        ("orders/eu/1", true),
        ("orders", false),
        ("orders/europe", false),
        ("other/md", false),
    ] {
        assert_eq!(desk.permits(Right::Read, &topic(name)), is_covered, "{name}");
        assert!(!desk.permits(Right::Publish, &topic(name)), "{name}");
    }
    assert_eq!(desk.key_for(Right::Read, &topic("md")).map(KeyName::as_str), Some("desk"));
    assert_eq!(desk.key_for(Right::Publish, &topic("md")), None);
    let ops = Authority::Proven(vec![std::sync::Arc::clone(ops)]);
    assert!(ops.permits(Right::Publish, &topic("x")) && ops.permits(Right::Read, &topic("mdx")));
    assert!(Authority::Anyone.permits(Right::Publish, &topic("x")));
    assert!(!Authority::Proven(Vec::new()).permits(Right::Read, &topic("x")));
    assert_eq!(keys.giving(Right::Publish).count(), 1);
}

#[test]
fn key_may_be_for_some_nodes_only() {
    let keys = keys(&format!("e publish orders {} engine-1,engine-2", secret(1)));
    let is_for = |node: &str| keys.all[0].is_for(&node.parse().unwrap());
    assert!(is_for("engine-1") && is_for("engine-2") && !is_for("engine-3"));
}

#[test]
fn malformed_line_is_named_with_its_fault() {
    let good = secret(1);
    for (line, expected) in [
        ("desk read md".to_owned(), KeyLineError::Fields { found: 3 }),
        (format!("desk read md {good} node extra"), KeyLineError::Fields { found: 6 }),
        (format!("de:sk read md {good}"), KeyLineError::Name),
        (format!("{} read md {good}", "n".repeat(65)), KeyLineError::Name),
        (format!("desk write md {good}"), KeyLineError::Rights),
        (format!("desk read,read md {good}"), KeyLineError::Rights),
        (format!("desk read md,,x {good}"), KeyLineError::Topics),
        (format!("desk read ../md {good}"), KeyLineError::Topics),
        (format!("desk read md/* {good}"), KeyLineError::Topics),
        (format!("desk read md {}", &good[1..]), KeyLineError::Secret),
        (format!("desk read md {}", &good[2..]), KeyLineError::Secret),
        (format!("desk read md {good}01"), KeyLineError::Secret),
        (format!("desk read md g{}", &good[1..]), KeyLineError::Secret),
        (format!("desk read md {}", &good[..44]), KeyLineError::Secret),
        (format!("desk read md {}", COUNTING_BASE64.replace('=', "A")), KeyLineError::Secret),
        (format!("desk read md {}", COUNTING_BASE64.replace("8=", "9=")), KeyLineError::Secret),
        (format!("desk read md {}", COUNTING_BASE64.trim_end_matches('=')), KeyLineError::Secret),
        (format!("desk read md {}", COUNTING_BASE64.replace('A', "-")), KeyLineError::Secret),
        (format!("desk read md {good} a,/"), KeyLineError::Nodes),
    ] {
        assert_eq!(line_error(&line), expected, "{line}");
    }
    let twice = |a: &str, b: &str| {
        let lines =
            format!("{a} read * {}\n{b} read * {}", secret(1), if a == b { secret(2) } else { secret(1) });
        crate::ErrorChain(&Keyring::from_text(&lines).unwrap_err()).to_string()
    };
    assert_eq!(twice("a", "a"), "line 2 of the keyring: another key is called a, too");
    assert!(twice("a", "b").contains("the key a has the same secret"));
    assert!(matches!(Keyring::from_text("# none\n"), Err(KeyringError::Empty)));
    assert!(matches!(Keyring::from_text(&"#".repeat(1 << 21)), Err(KeyringError::TooLong)));
    let many: String = (0..=crate::limits::KEYS_MAX).map(|i| format!("k{i} read * {i:064x}\n")).collect();
    let error = Keyring::from_text(&many).unwrap_err();
    assert!(matches!(error, KeyringError::Line { line: 1025, source: KeyLineError::TooMany }), "{error}");
}

#[test]
fn secret_is_never_shown() {
    let keyring = Keyring::from_text(&format!("desk read * {}", secret(0xAB))).unwrap();
    let (keys, _) = keyring.current();
    let shown =
        format!("{keyring:?} {keys:?} {:?}", Transcript::new(true, b"", b"", b"").tag(&keys.all[0]).len());
    assert!(shown.contains("desk") && !shown.to_lowercase().contains("abab"), "{shown}");
    assert!(!shown.contains("171, 171"), "{shown}");
    let error = line_error(&format!("desk read md {}zz", &secret(0xAB)[2..]));
    assert!(!format!("{error} {error:?}").contains("abab"));
}

/// The expected bytes were computed by another program.
#[test]
fn tags_and_identifiers_are_stable() {
    let keys = keys(&format!("k read * {COUNTING}"));
    let key = &keys.all[0];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&key.id().0), "cf2a1fdd171e4278");
    let dialling = Transcript::new(true, b"first hello", b"second", b"binding");
    let dialled = Transcript::new(false, b"second", b"first hello", b"binding");
    assert_eq!(hex(&dialling.tag(key)), "8a9d1293146d142d8ddd157c812ae0da11a6626a715d7c00be58a5e8c71cb973");
    assert_eq!(hex(&dialled.tag(key)), "07bfb3fb9aa24780c57770d20ac17f3f0bdeb074eceef93e71916d31c9b2d916");
}

#[test]
fn tag_is_accepted_from_the_other_end_of_the_same_session_only() {
    let keys = keys(&format!("k read * {}\nother read * {}", secret(1), secret(2)));
    let [key, other] = &keys.all[..] else { panic!() };
    let dialling = Transcript::new(true, b"a", b"b", b"c");
    let dialled = Transcript::new(false, b"b", b"a", b"c");
    assert!(dialled.is_peers(key, &dialling.tag(key)) && dialling.is_peers(key, &dialled.tag(key)));
    assert!(!dialling.is_peers(key, &dialling.tag(key)), "a tag that is sent back");
    assert!(!dialled.is_peers(other, &dialling.tag(key)), "another key");
    for (own, peers, binding) in [
        (&b"b"[..], &b"x"[..], &b"c"[..]),
        (b"x", b"a", b"c"),
        (b"b", b"a", b"x"),
        (b"a", b"b", b"c"),
        (b"", b"ba", b"c"),
    ] {
        assert!(!Transcript::new(false, own, peers, binding).is_peers(key, &dialling.tag(key)));
    }
    for bit in 0..TAG_LEN * 8 {
        let mut tag = dialling.tag(key);
        tag[bit / 8] ^= 1 << (bit % 8);
        assert!(!dialled.is_peers(key, &tag), "bit {bit}");
    }
}

#[test]
fn file_that_others_can_read_or_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    let text = format!("desk read * {}", secret(1));
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601] {
        write(&path, &text, mode);
        let error = Keyring::open(&path).unwrap_err();
        assert!(matches!(error, KeyringError::Mode { mode: found, .. } if found == mode), "{error}");
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }
    for mode in [0o600, 0o400] {
        write(&path, &text, mode);
        assert_eq!(Keyring::open(&path).unwrap().names()[0].as_str(), "desk");
        fs::remove_file(&path).unwrap();
    }
    assert!(matches!(Keyring::open(&path), Err(KeyringError::Unreadable { .. })));
    assert!(matches!(Keyring::open(dir.path()), Err(KeyringError::NotAFile { .. })));
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(matches!(Keyring::open(&fifo), Err(KeyringError::NotAFile { .. })));
    write(&path, "desk read *", 0o600);
    let error = Keyring::open(&path).unwrap_err();
    let cause = |source: &KeyringError| matches!(source, KeyringError::Line { line: 1, .. });
    assert!(matches!(&error, KeyringError::Content { source, .. } if cause(source)), "{error}");
}

#[test]
fn file_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    write(&path, &format!("desk read * {}", secret(1)), 0o600);
    if let Err(error) = std::os::unix::fs::chown(&path, Some(65_534), None) {
        return skip("other-users", &format!("no file can be given to another user ({error})"));
    }
    let error = Keyring::open(&path).unwrap_err();
    assert!(matches!(error, KeyringError::Owner { owner: 65_534, .. }), "{error}");
}

/// The order in which an operator rotates a secret, and what goes wrong on the way.
#[test]
fn changed_file_is_in_force_at_the_next_session() {
    let dir = tempfile::tempdir().unwrap();
    let (path, next) = (dir.path().join("keys"), dir.path().join("next"));
    write(&path, &format!("old read * {}", secret(1)), 0o600);
    let keyring = Keyring::open(&path).unwrap();
    let shared = keyring.clone();
    assert!(!keyring.reload().unwrap());

    write(&next, &format!("new read * {}", secret(2)), 0o600);
    fs::rename(&next, &path).unwrap();
    let (keys, error) = shared.current();
    assert!(error.is_none() && keys.all.len() == 1 && keys.all[0].name().as_str() == "new", "{keys:?}");
    assert_eq!(keyring.names()[0].as_str(), "new");

    // Of the same length, in place.
    write(&path, &format!("own read * {}", secret(3)), 0o600);
    assert!(keyring.reload().unwrap());
    assert_eq!(keyring.names()[0].as_str(), "own");

    // The previous keys stay in force while the file is unusable, and each fault is reported once.
    for (text, mode) in [("own read", 0o600), ("", 0o600), (&*format!("x read * {}", secret(4)), 0o644)] {
        write(&path, text, mode);
        let (keys, error) = keyring.current();
        assert!(error.is_some() && keys.all[0].name().as_str() == "own", "{text:?}");
        assert!(keyring.current().1.is_none(), "{text:?}");
        assert!(keyring.reload().is_err(), "{text:?}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(keyring.current().0.all[0].name().as_str(), "x");
    fs::remove_file(&path).unwrap();
    assert!(keyring.current().1.is_some());
    assert!(keyring.current().1.is_none(), "reported once");
    assert_eq!(keyring.names()[0].as_str(), "x");
}

/// As `openssl rand -base64 32` prints one.
#[test]
fn secret_in_base64_is_the_same_as_in_hexadecimal_digits() {
    let of = |secret: &str| keys(&format!("desk read md {secret}")).all[0].id;
    assert_eq!(of(COUNTING_BASE64), of(COUNTING));
    let text = format!("a read md {COUNTING}\nb read md {COUNTING_BASE64}");
    let same = Keyring::from_text(&text);
    assert!(matches!(same, Err(KeyringError::Line { line: 2, source: KeyLineError::SameSecret { .. } })));
}
