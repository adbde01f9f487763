//! What the pages say of the machine.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::verbs::{ADDRESS, setting};

/// The processor, how many there are, and the kernel.
pub(crate) fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|it| it.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
    };
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let processors = if count == 1 { "1 processor".to_owned() } else { format!("{count} processors") };
    let model = field("model name").replace("(R)", "").replace("(TM)", "");
    let kind = if info.contains(" hypervisor ") { "a virtual machine with " } else { "" };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{kind}{processors}, {model} (family {}, model {}), Linux {}",
        field("cpu family"),
        field("model"),
        release.trim(),
    )
}

/// The RDMA device with the address that figures over verbs use.
pub(crate) fn device_here() -> String {
    let address = setting(ADDRESS);
    let found = address.parse().ok().and_then(|it| device(Path::new("/sys/class/infiniband"), it));
    found.unwrap_or_else(|| format!("the one with the address {address}"))
}

/// The name of the device with this address, the kind of the address, and the device's driver, as the kernel shows them below
/// this folder.
pub(crate) fn device(folder: &Path, address: IpAddr) -> Option<String> {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let text = |path: &Path| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let inside = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for device in inside(folder) {
        for port in inside(&device.join("ports")) {
            let is_it = |gid: &Path| text(gid)?.parse().ok().filter(|it: &Ipv6Addr| *it == address);
            let Some(gid) = inside(&port.join("gids")).find(|gid| is_it(gid).is_some()) else { continue };
            let kind = text(&port.join("gid_attrs/types").join(gid.file_name()?));
            let link = text(&port.join("link_layer"));
            let driver = fs::read_link(device.join("device/driver")).ok();
            let driver = match driver.as_deref().and_then(Path::file_name) {
                Some(driver) => Some(driver.to_string_lossy().into_owned()),
                // Only soft-RoCE names the interface that it sends by.
                None => device.join("parent").exists().then(|| "soft-RoCE".to_owned()),
            };
            // The kernel has one word for InfiniBand and for the first version of RoCE.
            let kind = kind.map(|kind| match link.as_deref() {
                Some("InfiniBand") => "InfiniBand".to_owned(),
                _ => kind.replace("IB/", ""),
            });
            let name = Some(device.file_name()?.to_string_lossy().into_owned());
            return Some([name, kind, driver].into_iter().flatten().collect::<Vec<_>>().join(", "));
        }
    }
    None
}
