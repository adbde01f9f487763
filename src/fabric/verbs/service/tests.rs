use std::net::IpAddr;

use super::*;
use crate::fabric::FabricError;
use crate::fabric::verbs::device::Wish;
use crate::fabric::verbs::link::{LinkEvent, QpEnds, QpLink};
use crate::limits;
use crate::testkit::attempts::{below, one_of_three};

/// Dead peers of one node.
const DEAD: usize = 1000;
/// What the thread may take for its own work, however slow the machine is.
const WORK_NS: u64 = 1_500_000_000;

/// A link to a peer that never answers.
#[derive(Debug)]
struct Dead(Waker);

impl QpLink for Dead {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.0.wait_handle()
    }

    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    fn next(&mut self, _: &Devices, _: u64) -> Result<Option<LinkEvent>, FabricError> {
        Ok(None)
    }

    fn confirm(&mut self) {}

    fn leave(&mut self) {}

    fn is_leaving(&self) -> bool {
        false
    }

    fn disconnect(&self) {}

    fn is_dialled_to_write(&self) -> bool {
        false
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        None
    }

    fn ends(&self, _: u32) -> Result<QpEnds, FabricError> {
        Err(FabricError::Closed)
    }
}

/// Messages wait for all of them until the deadline of a connection that was dropped, which is one deadline for all.
#[test]
fn service_of_a_thousand_dead_peers_ends_with_one_deadline() {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    one_of_three(|| {
        let devices = Arc::new(Devices::new(Wish::default()));
        let service = Service::new(&devices).unwrap();
        let now_ns = SystemClock.monotonic_ns();
        for _ in 0..DEAD {
            let session = Session::new(&devices, Box::new(Dead(Waker::new().unwrap())), None).unwrap();
            session.send(b"the end", None, now_ns).unwrap();
            session.close(SystemClock.monotonic_ns());
            service.attend(&session);
        }
        let began_ns = SystemClock.monotonic_ns();
        drop(service);
        let took_ns = SystemClock.monotonic_ns() - began_ns;
        println!("{DEAD} sessions ended within {:?}", Duration::from_nanos(took_ns));
        below(
            "the end of the service",
            took_ns,
            limits::verbs::LINGER_NS + limits::verbs::RELEASE_NS + WORK_NS,
        )
    });
}
