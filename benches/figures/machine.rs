//! What the pages say of the machine.

use std::fs;

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
