//! Random numbers from the operating system, for epochs, keys and nonces.

use std::io;

use rustix::rand::GetRandomFlags;

/// Returns a nonzero random number.
pub(crate) fn number() -> Result<u64, io::Error> {
    loop {
        let mut bytes = [0; 8];
        // Requests of up to 256 bytes are served completely or fail, see getrandom(2).
        rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
        let number = u64::from_le_bytes(bytes);
        if number != 0 {
            return Ok(number);
        }
    }
}

/// Returns random bytes for a challenge or a secret.
pub(crate) fn bytes() -> Result<[u8; 32], io::Error> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_differ() {
        assert_ne!(super::number().unwrap(), super::number().unwrap());
        assert_ne!(super::bytes().unwrap(), super::bytes().unwrap());
    }
}
