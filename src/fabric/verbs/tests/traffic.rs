//! The service class of packets.

use super::*;
use crate::fabric::verbs::connection::VerbsConnection;
use crate::fabric::verbs::session::Session;

/// A code point of 46, and no congestion.
const CLASS: u8 = 0xb8;

#[test]
#[ignore = "needs an RDMA device"]
fn packets_of_every_connection_have_the_chosen_traffic_class() {
    let mut world = World::new();
    let wish = Wish { traffic_class: Some(CLASS), ..Wish::from_environment(None).unwrap() };
    world.near.devices = Arc::new(Devices::new(wish));
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let to = Destination::resolve(&world.at).unwrap();
        let VerbsFabric { devices, service, channels, .. } = &world.near;
        let now_ns = SystemClock.monotonic_ns();
        let link: Box<dyn QpLink> = match connect {
            RdmaConnect::Manager => Box::new(ManagedLink::dial(&to, false, devices, now_ns).unwrap()),
            _ => Box::new(ExchangedLink::dial(&to, (QueuePairKind::Rc, false), devices, now_ns).unwrap()),
        };
        let session = Session::new(devices, link, None).unwrap();
        let mut near = VerbsConnection::new(Arc::clone(&session), service, channels);
        let mut far = world.accept();
        send(&mut near, b"hello", None);
        assert_eq!(receive(&mut *far).0, b"hello");
        let queue_pair = &session.endpoint().unwrap().queue_pair;
        assert_eq!(queue_pair.traffic_class().unwrap(), CLASS, "{connect:?}");
    }
}
