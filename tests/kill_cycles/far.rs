//! Publishers on another host, which does what this one asks for over a TCP connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::driver::{Held, Near, Publishers, Way};
use super::support::peer::Holdings;
use super::support::time::{PATIENCE, now, wait_until};

/// The port of the connection, and those of the publishers.
const PORT: u16 = 7490;
const PUBLISHERS_PORTS: [u16; 2] = [7491, 7492];
/// How long a host is silent or stands still: longer than it takes to notice that.
const SILENT: Duration = Duration::from_millis(2500);
/// Machine a stands still for as many seconds as machine b writes into this file: see tools/soft-roce.
const FREEZE: &str = "/run/soft-roce/freeze-a";

fn host(variable: &str) -> String {
    std::env::var(variable).expect("tools/soft-roce run2 sets the addresses")
}

/// Drops what this host sends from now on, or lets it through again.
fn cut_the_wire(is_cut: bool) {
    let action = if is_cut { "add" } else { "del" };
    let mut words = vec!["qdisc", action, "dev", "eth0", "root", "netem"];
    words.extend(["loss", "100%"].iter().filter(|_| is_cut));
    assert!(Command::new("tc").args(words).status().expect("tc").success());
}

/// Nothing that this host sends arrives while this runs, and for a while after that.
pub(crate) fn in_silence(what: impl FnOnce()) {
    cut_the_wire(true);
    what();
    let began = now();
    wait_until("the end of the silence", || began.elapsed() > SILENT);
    cut_the_wire(false);
}

/// Objects of the RDMA devices of this host.
fn objects() -> u64 {
    let output = Command::new("rdma").args(["resource", "show"]).output().expect("rdma").stdout;
    let text = String::from_utf8(output).expect("text");
    // 0: rxe0: pd 1 cq 2 qp 3 cm_id 4 mr 5 ctx 6 srq 7
    text.split_whitespace().skip(2).filter_map(|word| word.parse::<u64>().ok()).sum()
}

/// Has two publishers and does what the other host asks for, until it hangs up.
pub(crate) fn serve(dir: &Path, pause_us: u64) {
    let place = PUBLISHERS_PORTS.map(|port| format!("rdma://{}:{port}", host("SELF")));
    let mut near = Near::new(dir, place, pause_us);
    let listener = TcpListener::bind((host("SELF"), PORT)).expect("a free port");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut answer = "done".to_owned();
        match words[..] {
            ["kill"] => near.kill(Way::Killed),
            ["die"] => in_silence(|| near.kill(Way::HostDies)),
            ["start", manner] => near.start(manner == "anew"),
            ["vain", manner, after_us] => {
                let after = Duration::from_micros(after_us.parse().expect("a number"));
                near.start_in_vain(manner == "anew", after);
            }
            ["ask", publisher, command] => {
                answer = near.ask(publisher.parse().expect("a number"), command);
            }
            ["held"] => {
                let Held { holdings: Holdings { files, regions }, threads, mappings, resident, .. } =
                    near.holdings();
                answer = format!("{files} {regions} {threads} {mappings} {resident} {}", objects());
            }
            ["end"] => {
                near.end();
                writeln!(stream, "{answer}").expect("a connection");
                return;
            }
            _ => panic!("what is {line:?}?"),
        }
        writeln!(stream, "{answer}").expect("a connection");
    }
    panic!("the other host has hung up");
}

/// The publishers of the other host.
#[derive(Debug)]
pub(crate) struct Far {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Far {
    pub(crate) fn connect() -> Self {
        let mut stream = None;
        wait_until("the other host", || {
            stream = TcpStream::connect((host("PEER"), PORT)).ok();
            stream.is_some()
        });
        let stream = stream.expect("it is connected");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(2 * PATIENCE)).expect("an option");
        let lines = BufReader::new(stream.try_clone().expect("a handle"));
        Self { stream, lines }
    }

    fn say(&mut self, command: &str) -> String {
        writeln!(self.stream, "{command}").expect("a connection");
        let mut answer = String::new();
        self.lines.read_line(&mut answer).expect("an answer");
        assert!(!answer.is_empty(), "the other host has hung up");
        answer.trim_end().to_owned()
    }

    pub(crate) fn end(mut self) {
        self.say("end");
    }
}

fn manner(begins_anew: bool) -> &'static str {
    if begins_anew { "anew" } else { "on" }
}

impl Publishers for Far {
    fn kill(&mut self, way: Way) {
        match way {
            Way::Killed => _ = self.say("kill"),
            Way::HostDies => _ = self.say("die"),
            Way::HostFreezes => {
                let asked = format!("{FREEZE}.new");
                std::fs::write(&asked, SILENT.as_secs_f64().to_string()).expect("a file");
                std::fs::rename(&asked, FREEZE).expect("a file");
                wait_until("the other host to go on", || !Path::new(FREEZE).exists());
            }
        }
    }

    fn start(&mut self, begins_anew: bool) {
        self.say(&format!("start {}", manner(begins_anew)));
    }

    fn start_in_vain(&mut self, begins_anew: bool, after: Duration) {
        self.say(&format!("vain {} {}", manner(begins_anew), after.as_micros()));
    }

    fn ask(&mut self, publisher: usize, command: &str) -> String {
        self.say(&format!("ask {publisher} {command}"))
    }

    fn holdings(&mut self) -> Held {
        let answer = self.say("held");
        let numbers: Vec<u64> = answer.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [files, regions, threads, mappings, resident, objects] = numbers[..] else { panic!("{answer}") };
        let count = |number: u64| usize::try_from(number).expect("few of them");
        let holdings = Holdings { files: count(files), regions: count(regions) };
        Held { holdings, threads, mappings, resident, objects }
    }

    fn near_objects(&self) -> u64 {
        objects()
    }

    fn targets(&self) -> [String; 2] {
        PUBLISHERS_PORTS.map(|port| format!("rdma://{}:{port}", host("PEER")))
    }
}
