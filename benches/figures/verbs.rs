//! Figures over RDMA verbs, beside perftest on the same device.

#![expect(clippy::disallowed_methods, reason = "nothing signals that the server of perftest listens")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::aims::{self, Bound};
use super::data::Data;
use super::lab::Lab;
use super::page::{Block, Table};
use super::units::{bytes, count, or_nothing, ratio, throughput, time};
use super::{Outcome, latency, streams};

const SIZES: [u64; 3] = [64, 4096, 65_536];
/// The tool of perftest beside a delivery, and how much a log moves at a time by it.
const TOOLS: [(&str, &str, u64); 2] = [("pull", "ib_read_bw", 65_536), ("push", "ib_write_bw", 32_768)];
/// How long the server of perftest may take to listen, and where it does.
const LISTEN_POLLS_MAX: u32 = 100;
const POLL: Duration = Duration::from_millis(100);
const PERFTEST_PORT: u16 = 18_515;
/// How often a run of perftest is attempted.
const ATTEMPTS_MAX: u32 = 3;
/// Messages of a run of perftest.
const MESSAGES: &str = "1000";
/// A variable of the environment, and its value in the virtual machine.
pub(crate) type Setting = (&'static str, &'static str);
pub(crate) const ADDRESS: Setting = ("FABRICAST_VERBS_ADDRESS", "10.77.0.1");
const DEVICE: Setting = ("FABRICAST_RDMA_DEVICE", "rxe0");
const GID_INDEX: Setting = ("FABRICAST_RDMA_GID_INDEX", "1");

pub(crate) fn setting((name, default): Setting) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

pub(super) fn measure_latency(lab: &mut Lab) -> Outcome<()> {
    let sizes = list(lab.some(&SIZES));
    let seconds = lab.seconds(3.0);
    for mode in ["pull", "push", "notify"] {
        latency::round_trips(lab, mode, &[mode, "--fabric", "verbs", "--size", &sizes, "--for", &seconds])?;
    }
    Ok(())
}

fn list(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

pub(super) fn show_latency(data: &Data) -> Vec<Block> {
    let row = |size: u64| {
        let cells = ["pull", "push", "notify"].iter().flat_map(|series| {
            ["p50_ns", "p99_ns"].map(|value| or_nothing(data.median((series, size, value)), time))
        });
        std::iter::once(count(size)).chain(cells).collect()
    };
    let head = ["bytes", "pull p50", "pull p99", "push p50", "push p99", "notify p50", "notify p99"];
    let rows = data.places("pull").into_iter().map(row).collect();
    let plot = latency::plot("verbs-latency", "Round trips over RDMA verbs by size", (data, None));
    vec![Block { name: "verbs-latency", tables: vec![Table::new(&head, rows)], plots: vec![plot] }]
}

pub(super) fn measure_throughput(lab: &mut Lab) -> Outcome<()> {
    let seconds = lab.seconds(3.0);
    let sizes = lab.some(&SIZES).to_vec();
    for (delivery, tool, most) in TOOLS {
        for size in sizes.iter().filter(|size| **size != most).chain([&most]) {
            bandwidth(lab, tool, *size)?;
        }
        let sizes = list(&sizes);
        let arguments =
            ["stream", "--fabric", "verbs", "--size", &sizes, "--delivery", delivery, "--for", &seconds];
        streams::stream(lab, delivery, &arguments)?;
    }
    Ok(())
}

pub(super) fn show_throughput(data: &Data) -> Vec<Block> {
    let row = |size: u64| {
        let of = |series: &str| or_nothing(data.median((series, size, "gb_per_s")), throughput);
        let cells = TOOLS.iter().flat_map(|(series, tool, most)| {
            let to_most = data.ratio((series, size, "gb_per_s"), (tool, *most, "gb_per_s"));
            [of(series), of(tool), ratio(to_most)]
        });
        std::iter::once(bytes(size)).chain(cells).collect()
    };
    let head = [
        "record, or message of perftest",
        "pull",
        "`ib_read_bw`",
        "pull to `ib_read_bw` of 64 KiB",
        "push",
        "`ib_write_bw`",
        "push to `ib_write_bw` of 32 KiB",
    ];
    let rows = data.places("pull").into_iter().map(row).collect();
    let curves = [
        ("pull", "pull", false),
        ("push", "push", false),
        ("ib_read_bw", "ib_read_bw", true),
        ("ib_write_bw", "ib_write_bw", true),
    ];
    let title = "Streams over RDMA verbs by size of a record, and perftest by size of a message";
    let plot = streams::plot("verbs-throughput", title, (data, &curves));
    let aim = |(series, tool, most): (&str, &str, u64)| {
        let found = data.ratio((series, 4096, "gb_per_s"), (tool, most, "gb_per_s"));
        (format!("{series} of 4 KiB to `{tool}` of {}", bytes(most)), Bound::AtLeast(0.8), found)
    };
    let tables = vec![Table::new(&head, rows), aims::table(TOOLS.map(aim).into())];
    vec![Block { name: "verbs-throughput", tables, plots: vec![plot] }]
}

/// Adds what a tool of perftest says of one size.
fn bandwidth(lab: &mut Lab, tool: &str, size: u64) -> Outcome<()> {
    let (device, gid, address) = (setting(DEVICE), setting(GID_INDEX), setting(ADDRESS));
    let size_text = size.to_string();
    let options = ["-d", &device, "-x", &gid, "-s", &size_text, "-n", MESSAGES, "-F", "--report_gbits"];
    lab.note(format!("{tool} {}", options.join(" ")));
    let text = attempted(|| {
        // As the processes of `fabricast perf`.
        let _server = lab.on_processor(true, || Server::start(tool, &options))?;
        let mut command = Command::new("timeout");
        command.arg("60").arg(tool).args(options).arg(&address).stderr(Stdio::null());
        lab.on_processor(false, || lab.run_command(&mut command))
    })?;
    let row = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let average =
        row.filter(|row| row.first() == Some(&size_text.as_str())).find_map(|row| row.get(3)?.parse().ok());
    let gigabits: f64 = average.ok_or_else(|| format!("{tool} printed no row of {size} bytes"))?;
    lab.add((tool, size), None, &[("gb_per_s", gigabits / 8.0)]);
    Ok(())
}

/// Repeats a tool of perftest that ends without a result, and reports each time.
fn attempted<T>(mut run: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    for _ in 1..ATTEMPTS_MAX {
        match run() {
            Ok(result) => return Ok(result),
            Err(error) => eprintln!("tools/bench: {error}; it is run again"),
        }
    }
    run()
}

/// The server of a tool of perftest, which is ended when this is dropped.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it listens.
    fn start(tool: &str, options: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(tool);
        command.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        let server =
            Self(command.spawn().map_err(|error| format!("cannot run {tool}: {error}; install perftest"))?);
        let port = format!(":{PERFTEST_PORT:04X} ");
        for _ in 0..LISTEN_POLLS_MAX {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
            if tables.into_iter().flatten().any(|table| table.contains(&port)) {
                return Ok(server);
            }
            std::thread::sleep(POLL);
        }
        Err(format!("the server of {tool} does not listen at port {PERFTEST_PORT}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended if its client was served.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

pub(super) fn measure_perftest(lab: &mut Lab) -> Outcome<()> {
    lab.note("tools/perf-verbs".to_owned());
    lab.data.processors =
        "processors 0 and 1 for the processes of `fabricast perf`, the others not pinned".to_owned();
    let mut command = Command::new("tools/perf-verbs");
    command.env("FABRICAST_PROGRAM", lab.programs.path("fabricast")?);
    command.env("FABRICAST_VERBS_DELIVERY", lab.programs.path("verbs_delivery")?).env("ROUNDS", "1");
    if lab.is_quick {
        command.env("ITERATIONS", "100").env("WAKE_ITERATIONS", "20");
    }
    let text = lab.run_command(&mut command)?;
    // ib_write_lat 64          p50      19.00 us, median of 1
    for line in text.lines() {
        if let [name, size, "p50", us, "us,", ..] = line.split_whitespace().collect::<Vec<_>>()[..] {
            lab.add((name, size.parse()?), None, &[("ns", us.parse::<f64>()? * 1e3)]);
        }
    }
    Ok(())
}

pub(super) fn show_perftest(data: &Data) -> Vec<Block> {
    let ns = |series: &str, size: u64, times: f64| {
        or_nothing(data.median((series, size, "ns")).map(|ns| ns * times), time)
    };
    let to = |series: &str, other: &str, size: u64| data.ratio((series, size, "ns"), (other, size, "ns"));
    let row = |size: u64| {
        vec![
            count(size),
            ns("ib_write_lat", size, 2.0),
            ns("push", size, 1.0),
            ratio(to("push", "ib_write_lat", size).and_then(|ratios| ratios.scaled(0.5))),
            ns("ib_read_lat", size, 1.0),
            ns("read", size, 1.0),
            ratio(to("read", "ib_read_lat", size)),
        ]
    };
    let head = [
        "bytes",
        "twice `ib_write_lat`",
        "push round trip",
        "ratio",
        "`ib_read_lat`",
        "pull of a new value",
        "ratio",
    ];
    let rows = data.places("push").into_iter().map(row).collect();
    let wake = |delivery: &str| {
        let series = format!("wake-{delivery}");
        vec![
            delivery.to_owned(),
            ns(&series, 64, 1.0),
            ns("ib_send_lat", 64, 1.0),
            ratio(to(&series, "ib_send_lat", 64)),
            ns("ib_send_lat-idle", 64, 1.0),
            ratio(to(&series, "ib_send_lat-idle", 64)),
        ]
    };
    let wake_head = [
        "delivery",
        "to a subscriber that sleeps",
        "`ib_send_lat --events`",
        "ratio",
        "the same with pauses",
        "ratio",
    ];
    let push = to("push", "ib_write_lat", 64).and_then(|ratios| ratios.scaled(0.5));
    let deliveries = [
        ("push round trip of 64 B to twice `ib_write_lat`", push),
        ("pull of a new value of 64 B to `ib_read_lat`", to("read", "ib_read_lat", 64)),
    ];
    let aim = |(name, found): (&str, _)| (name.to_owned(), Bound::AtMost(1.25), found);
    let wake_aim = |delivery: &str| {
        let name = format!("to a {delivery} subscriber that sleeps, to `ib_send_lat --events`");
        (name, Bound::AtMost(1.3), to(&format!("wake-{delivery}"), "ib_send_lat", 64))
    };
    let tables = vec![Table::new(&head, rows), aims::table(deliveries.map(aim).into())];
    let wakes = ["pull", "push"];
    let wake_tables =
        vec![Table::new(&wake_head, wakes.map(wake).into()), aims::table(wakes.map(wake_aim).into())];
    vec![
        Block { name: "verbs-perftest", tables, plots: vec![] },
        Block { name: "verbs-wake", tables: wake_tables, plots: vec![] },
    ]
}
