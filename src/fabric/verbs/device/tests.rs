use super::*;
use crate::chain::ErrorChain;
use crate::fabric::verbs::sys::PortState;

fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
    let address: IpAddr = address.parse().unwrap();
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    Gid { index, bytes, kind }
}

fn port(number: u8, state: PortState, gids: Vec<Gid>) -> PortReport {
    let gid_table_len = u32::try_from(gids.len()).unwrap();
    let link_layer = LinkLayer::Ethernet;
    let attributes = PortAttributes { state, active_mtu: 1024, lid: 0, link_layer, gid_table_len };
    PortReport { number, attributes, gids }
}

fn device(name: &str, ports: Vec<PortReport>) -> DeviceReport {
    DeviceReport { name: name.to_owned(), ports }
}

/// A table as drivers of adapters fill it: each address in both kinds, link-local ones first.
fn usual_gids(address: &str) -> Vec<Gid> {
    vec![
        gid(0, "fe80::1", GidKind::RoceV1),
        gid(1, "fe80::1", GidKind::RoceV2),
        gid(2, "2001:db8::7", GidKind::RoceV2),
        gid(3, address, GidKind::RoceV1),
        gid(5, address, GidKind::RoceV2),
    ]
}

fn three_devices() -> Vec<DeviceReport> {
    vec![
        device("mlx5_0", vec![port(1, PortState::Down, vec![])]),
        device(
            "mlx5_1",
            vec![
                port(1, PortState::Active, usual_gids("192.0.2.1")),
                port(2, PortState::Active, usual_gids("192.0.2.2")),
            ],
        ),
        device("rxe0", vec![port(1, PortState::Active, vec![gid(0, "198.51.100.9", GidKind::RoceV2)])]),
    ]
}

fn wish(device: &str, gid_index: &str, address: &str) -> Wish {
    let some = |text: &'static str| Some(text).filter(|text| !text.is_empty());
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let address = some(leak(address)).map(|address| address.parse().unwrap());
    Wish::parse(some(leak(device)), some(leak(gid_index)), address).unwrap()
}

fn chosen(devices: &[DeviceReport], wish: &Wish) -> (String, u8, u32) {
    let (index, port, gid) = choose(devices, wish).unwrap();
    (devices[index].name.clone(), port.number, gid.index)
}

fn refusal(devices: &[DeviceReport], wish: &Wish) -> String {
    choose(devices, wish).unwrap_err().to_string()
}

#[test]
fn the_first_active_port_is_taken_with_its_routable_ipv4_address() {
    assert_eq!(chosen(&three_devices(), &Wish::default()), ("mlx5_1".to_owned(), 1, 5));
    // The wildcard address requests nothing.
    assert_eq!(chosen(&three_devices(), &wish("", "", "0.0.0.0")), ("mlx5_1".to_owned(), 1, 5));
}

#[test]
fn a_named_device_or_port_or_place_is_taken() {
    let devices = three_devices();
    assert_eq!(chosen(&devices, &wish("rxe0", "", "")), ("rxe0".to_owned(), 1, 0));
    assert_eq!(chosen(&devices, &wish("mlx5_1:2", "", "")), ("mlx5_1".to_owned(), 2, 5));
    assert_eq!(chosen(&devices, &wish("mlx5_1", "3", "")), ("mlx5_1".to_owned(), 1, 3));
}

#[test]
fn the_device_of_an_address_is_taken() {
    let devices = three_devices();
    assert_eq!(chosen(&devices, &wish("", "", "192.0.2.2")), ("mlx5_1".to_owned(), 2, 5));
    assert_eq!(chosen(&devices, &wish("", "", "::ffff:198.51.100.9")), ("rxe0".to_owned(), 1, 0));
    assert_eq!(chosen(&devices, &wish("", "", "2001:db8::7")), ("mlx5_1".to_owned(), 1, 2));
}

/// One that was renamed while it is open keeps its name here, and a new one may have the same.
#[test]
fn of_two_devices_of_one_name_that_of_the_address_is_taken() {
    let of = |address: &str| device("rxe0", vec![port(1, PortState::Active, usual_gids(address))]);
    let devices = [of("192.0.2.1"), of("192.0.2.2")];
    assert_eq!(choose(&devices, &wish("", "", "192.0.2.2")).unwrap().0, 1);
    assert_eq!(choose(&devices, &wish("rxe0", "", "192.0.2.1")).unwrap().0, 0);
}

#[test]
fn without_an_ipv4_address_a_global_one_then_any_is_taken() {
    let gids = [
        gid(0, "fe80::1", GidKind::RoceV1),
        gid(1, "fe80::1", GidKind::RoceV2),
        gid(2, "2001:db8::1", GidKind::RoceV2),
    ];
    let of = |count| {
        vec![device("a", vec![port(1, PortState::Active, gids.iter().take(count).copied().collect())])]
    };
    assert_eq!(chosen(&of(3), &Wish::default()).2, 2);
    assert_eq!(chosen(&of(2), &Wish::default()).2, 1);
    assert_eq!(chosen(&of(1), &Wish::default()).2, 0);
    assert!(refusal(&of(0), &Wish::default()).contains("no usable address (GID)"));
}

#[test]
fn infiniband_uses_the_first_address() {
    let mut port = port(1, PortState::Active, vec![gid(0, "fe80::2", GidKind::Infiniband)]);
    port.attributes.link_layer = LinkLayer::Infiniband;
    let devices = [device("ib0", vec![port])];
    assert_eq!(chosen(&devices, &Wish::default()).2, 0);
    // An IP address does not identify the device, and assigning one does not help.
    assert_eq!(chosen(&devices, &wish("", "0", "192.0.2.1")).2, 0);
    let refused = refusal(&devices, &wish("", "", "192.0.2.1"));
    assert!(refused.contains("set FABRICAST_RDMA_GID_INDEX=0") && refused.contains("ib0:1"), "{refused}");
}

#[test]
fn an_address_of_the_other_end_s_kind_is_taken() {
    let of = |device: &str, is_ipv4| Wish { is_ipv4: Some(is_ipv4), ..wish(device, "", "") };
    let devices = three_devices();
    assert_eq!(chosen(&devices, &of("mlx5_1:1", true)), ("mlx5_1".to_owned(), 1, 5));
    assert_eq!(chosen(&devices, &of("mlx5_1:1", false)), ("mlx5_1".to_owned(), 1, 2));
    assert!(refusal(&devices, &of("rxe0", false)).contains("no usable address (GID)"));
}

#[test]
fn refusals_list_the_devices_and_a_remedy() {
    let devices = three_devices();
    let cases = [
        (refusal(&devices, &wish("mlx5_7", "", "")), "no RDMA device or port mlx5_7;"),
        (refusal(&devices, &wish("rxe0:2", "", "")), "no RDMA device or port rxe0:2;"),
        (refusal(&devices, &wish("mlx5_0", "", "")), "ip link set IFACE up"),
        (
            refusal(&devices, &wish("", "", "203.0.113.5")),
            "no active RDMA device has the address 203.0.113.5",
        ),
        (refusal(&devices, &wish("rxe0", "4", "")), "FABRICAST_RDMA_GID_INDEX"),
    ];
    for (sentence, what) in cases {
        assert!(sentence.contains(what), "{sentence}");
        assert!(sentence.contains("mlx5_0:1 (Down, Ethernet, no GID), mlx5_1:1 (Active, "), "{sentence}");
        assert!(sentence.contains("rxe0:1 (Active, Ethernet, GID 0 198.51.100.9 RoceV2)"), "{sentence}");
    }
    let with_closed = [devices, vec![device("mlx5_9", vec![])]].concat();
    let closed = refusal(&with_closed, &wish("mlx5_9", "", ""));
    assert!(
        closed.ends_with("mlx5_9 (cannot be opened: may this user use its file in /dev/infiniband?)"),
        "{closed}"
    );
    let many = (0..9).map(|index| gid(index, "192.0.2.1", GidKind::RoceV1)).collect();
    let devices = [device("a", vec![port(1, PortState::Active, many)])];
    assert!(refusal(&devices, &wish("", "9", "")).ends_with("GID 5 192.0.2.1 RoceV1, 3 more)"));
}

#[test]
fn variables_that_are_not_understood_are_refused() {
    for (device, gid_index, what) in [
        (Some("mlx5_0:x"), None, "FABRICAST_RDMA_DEVICE=mlx5_0:x is not a device"),
        (None, Some("first"), "FABRICAST_RDMA_GID_INDEX=first is not an index"),
    ] {
        let error = Wish::parse(device, gid_index, None).unwrap_err();
        assert!(error.to_string().starts_with(what), "{error}");
    }
    for dscp in ["64", "-1", "EF", "0x2e", "256", " 46"] {
        let error = traffic_class(dscp).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("FABRICAST_RDMA_DSCP={dscp} is not a differentiated ")),
            "{error}"
        );
    }
    let error = without_windows("no").unwrap_err().to_string();
    assert!(error.starts_with("FABRICAST_RDMA_WINDOWS=no is not on or off"), "{error}");
    assert_eq!(["on", "off"].map(|windows| without_windows(windows).unwrap()), [false, true]);
    assert_eq!(["0", "46", "63"].map(|dscp| traffic_class(dscp).unwrap()), [0, 184, 252]);
}

#[test]
fn reasons_that_devices_cannot_be_opened_are_distinguished() {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let both = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"];
    let view = |devices: &[&str], files: &[&str], closed: &[&str]| KernelView {
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
        files: paths(files),
        closed_files: paths(closed),
        unread: None,
    };
    let unread = KernelView { unread: Some(Errno::MFILE), ..view(&[], &[], &[]) };
    let cases = [
        (view(&[], &[], &[]), "this host has no RDMA device; `rdma link`"),
        (view(&["rxe0"], &both[..1], &[]), "(rxe0) cannot be reached: there is no /dev/infiniband/uverbs0"),
        (view(&["rxe0"], &both, &both[1..]), "no permission to read and write /dev/infiniband/uverbs0;"),
        (view(&["rxe0"], &both, &[]), "rdma_get_devices failed: "),
        (unread, "rdma_get_devices failed: Too many open files"),
    ];
    for (view, what) in cases {
        let error = explain_by(SysError::new("rdma_get_devices", Errno::NODEV), &view);
        let error = ErrorChain(&error).to_string();
        assert!(error.contains(what), "{error}");
    }
}
