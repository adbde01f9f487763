//! The credentials of the peer of a session's socket.

use std::os::fd::AsFd;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::io::Errno;

/// What the kernel recorded of the peer when it dialled or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Its effective user.
    pub(super) user: u32,
    /// Its effective group.
    pub(super) group: u32,
    /// Its process; 0 if this process's namespace does not show it, as from one container to another (pid_namespaces(7)).
    pub(super) process: u32,
}

impl Credentials {
    /// Returns the credentials of this socket's peer. Uses nix, because rustix cannot represent process 0.
    pub(super) fn of_peer(socket: &impl AsFd) -> Result<Self, Errno> {
        let found: UnixCredentials = getsockopt(&socket.as_fd(), PeerCredentials)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let process = u32::try_from(found.pid()).unwrap_or(0);
        Ok(Self { user: found.uid(), group: found.gid(), process })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn peer_of_this_process_is_this_process() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let expected = Credentials { user, group, process: std::process::id() };
        assert_eq!(Credentials::of_peer(&socket), Ok(expected));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Credentials::of_peer(&file), Err(Errno::NOTSOCK));
    }
}
