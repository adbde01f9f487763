//! Whether a device is still on the host.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{fstat, major, minor};
use rustix::io::{Errno, pread};

use super::SysError;

/// Where the kernel lists the devices that programs can open, by the number of their file.
const BY_NUMBER: &str = "/sys/dev/char";
/// The entry with the name of the RDMA device.
const NAME: &str = "ibdev";
/// Bytes of the longest name, and a line end (`IB_DEVICE_NAME_MAX` in the kernel).
const NAME_LEN_MAX: usize = 65;

/// What the kernel says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is there, and has this name now.
    Named(String),
    /// It was removed.
    Gone,
    /// Nothing: the device is not listed, as in some containers, or the list could not be read.
    Unknown,
}

/// Asks the kernel whether one device is still there.
///
/// It keeps the entry of that device open. Reading an entry whose device was removed fails with an error of its own (ENODEV), even if
/// another device has the name or the number by then; and neither another name of the device nor a lack of descriptors causes that error.
#[derive(Debug)]
pub(super) struct Watch(Option<File>);

impl Watch {
    /// Watches the device whose commands this descriptor takes. An error if that may succeed later.
    pub(super) fn of(commands: BorrowedFd<'_>) -> Result<Self, SysError> {
        let number = fstat(commands).map_err(|errno| SysError::new("fstat", errno))?.st_rdev;
        Self::open(&Path::new(BY_NUMBER).join(format!("{}:{}", major(number), minor(number))))
    }

    fn open(listed: &Path) -> Result<Self, SysError> {
        match File::open(listed.join(NAME)) {
            Ok(entry) => Ok(Self(Some(entry))),
            Err(reason) if is_shortage(&reason) => Err(SysError { call: "open", reason }),
            Err(_) => Ok(Self(None)),
        }
    }

    /// What the kernel says of it now.
    pub(super) fn ask(&self) -> Presence {
        let mut name = [0; NAME_LEN_MAX];
        let Some(entry) = &self.0 else { return Presence::Unknown };
        let read = pread(entry, &mut name, 0);
        presence(read.map(|len| name.get(..len).unwrap_or_default()))
    }
}

/// What the kernel says by what it answers.
fn presence(read: Result<&[u8], Errno>) -> Presence {
    match read {
        Ok(name) => Presence::Named(String::from_utf8_lossy(name).trim_end().to_owned()),
        Err(Errno::NODEV) => Presence::Gone,
        Err(_) => Presence::Unknown,
    }
}

/// Whether the process or the host lacked descriptors, or memory.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernel_s_word_for_it_is_a_removal() {
        assert_eq!(presence(Ok(b"mlx5_0\n")), Presence::Named("mlx5_0".to_owned()));
        assert_eq!(presence(Err(Errno::NODEV)), Presence::Gone);
        for errno in
            [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS, Errno::NOENT, Errno::INTR, Errno::IO]
        {
            assert_eq!(presence(Err(errno)), Presence::Unknown, "{errno}");
        }
    }

    #[test]
    fn device_may_be_renamed_and_need_not_be_listed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Watch::open(dir.path()).unwrap().ask(), Presence::Unknown);
        let name = dir.path().join(NAME);
        std::fs::write(&name, "rxe0\n").unwrap();
        let watch = Watch::open(dir.path()).unwrap();
        assert_eq!(watch.ask(), Presence::Named("rxe0".to_owned()));
        std::fs::write(&name, "rocep1s0\n").unwrap();
        assert_eq!(watch.ask(), Presence::Named("rocep1s0".to_owned()));
        // The list is not what it asks.
        std::fs::remove_file(&name).unwrap();
        assert_eq!(watch.ask(), Presence::Named("rocep1s0".to_owned()));
    }

    #[test]
    fn shortage_is_no_answer() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(is_shortage(&errno.into()));
        }
        assert!(!is_shortage(&Errno::NOENT.into()));
    }
}
