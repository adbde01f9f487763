//! Files of keys.

use crate::keyring;

/// The text of a keyring.
pub(super) fn run(bytes: &[u8]) {
    keyring::fuzzed::parse(bytes);
}

/// Texts with everything that a line may have.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use crate::keyring::tests::secret;
    let one = format!("k read * {}", secret(1));
    let all = format!(
        "# name rights topics secret nodes\n\ndesk read md,orders/eu {}\r\n  engine\tpublish orders {} engine-1,engine-2\n{}\n",
        secret(2),
        secret(0xAB).to_uppercase(),
        format_args!("a.b_c-9 publish,read * {} x", secret(4)),
    );
    [one, all].map(String::into_bytes).to_vec()
}
