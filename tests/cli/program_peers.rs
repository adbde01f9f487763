//! `fabricast perf ping-pong` with peers that stop, are busy, or are no programs at all. Each test has an RDMA device and ports of its
//! own.

#![expect(clippy::big_endian_bytes, reason = "the ends may be of different kinds")]

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use super::programs::machine::{address, measure};
use super::support::{Place, Running, TIMEOUT, json, wait_until};

/// An agent that listens at this port, and its address.
fn agent(place: &Place, port: u16) -> (Running, String) {
    let address = address(port);
    let agent = place.start(&["perf", "ping-pong", "--serve", "--rdma", &address, "--cpus", "any"]);
    wait_until("the address", || agent.line().contains(&address));
    (agent, address)
}

/// A client of this agent, which has connected.
fn client(place: &Place, mode: &str, address: &str, options: &[&str]) -> Running {
    let arguments = ["-v", "perf", "ping-pong", "--mode", mode, "--connect", address, "--cpus", "any"];
    let client = place.start(&[&arguments[..], options].concat());
    wait_until("the connection", || client.error_line().contains("connected"));
    client
}

/// An agent that stands still ends the run of its client, also where the device answers in its place.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn stopped_agent_ends_the_run() {
    let place = Place::new();
    // In the first the agent sleeps, in the second the client, and in the others both wait for each other.
    let modes = [("rdma-1", 7531), ("rdma-1e", 7532), ("send-event", 7533), ("uc-write", 7534)];
    let pairs = modes.map(|(mode, port)| {
        let (agent, address) = agent(&place, port);
        let client = client(&place, mode, &address, &["--for", "5s"]);
        agent.signal(Signal::STOP);
        (mode, agent, client)
    });
    for (mode, agent, client) in pairs {
        let ended = client.end();
        assert_eq!(ended.code, Some(5), "{mode}: {ended:?}");
        assert!(ended.error.contains("stopped answering"), "{mode}: {ended:?}");
        agent.signal(Signal::KILL);
        agent.signal(Signal::CONT);
    }
}

/// A machine that stands still, with both processes, for longer than a peer may take to answer ends no run, and loses no block.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn both_ends_that_stand_still_go_on_afterwards() {
    let place = Place::new();
    let modes =
        [("rdma-1", 7537), ("rdma-1e", 7538), ("send", 7539), ("send-event", 7540), ("uc-write", 7541)];
    let pairs = modes.map(|(mode, port)| {
        let (agent, address) = agent(&place, port);
        let client = client(&place, mode, &address, &["--for", "2s", "--json"]);
        agent.signal(Signal::STOP);
        client.signal(Signal::STOP);
        (mode, agent, client)
    });
    let slept = std::process::Command::new("sleep").arg("11").status();
    assert!(slept.is_ok_and(|status| status.success()));
    for (_, agent, client) in &pairs {
        agent.signal(Signal::CONT);
        client.signal(Signal::CONT);
    }
    for (mode, agent, client) in pairs {
        let ended = client.end();
        assert_eq!(ended.code, Some(0), "{mode}: {ended:?}");
        let line = json(&ended.out);
        assert_eq!((&line["lost"], &line["rejected"]), (&0.into(), &0.into()), "{mode}: {line}");
        agent.signal(Signal::INT);
        assert_eq!(agent.end().code, Some(0), "{mode}");
    }
}

/// A client that stands still keeps others waiting for the length of its run, and those that wait are served then.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn stopped_client_is_given_up_and_the_next_is_served() {
    let place = Place::new();
    let (agent, address) = agent(&place, 7535);
    for mode in ["rdma-1", "rdma-3"] {
        let stopped = client(&place, mode, &address, &["--for", "4s"]);
        stopped.signal(Signal::STOP);
        for way in ["manager", "tcp"] {
            let waits = ["--iterations", "200", "--rdma-connect", way];
            measure(&place, &[&["ping-pong", "--mode", "send", "--connect", &address], &waits[..]].concat());
        }
        // Attempts that were given up come to nothing, too.
        wait_until("the sentence", || agent.error_line().contains("has stopped answering"));
        stopped.signal(Signal::CONT);
        let ended = stopped.end();
        assert_eq!(ended.code, Some(6), "{mode}: {ended:?}");
    }
    agent.signal(Signal::INT);
    assert_eq!(agent.end().code, Some(0));
}

/// Connects by TCP and sends these frames. Returns what is answered until the agent closes the connection.
fn answer(port: u16, frames: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(address(port).trim_start_matches("rdma://"))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    for frame in frames {
        let len = u16::try_from(frame.len()).unwrap_or(u16::MAX);
        socket.write_all(&[&len.to_be_bytes()[..], frame.as_slice()].concat())?;
    }
    let mut bytes = Vec::new();
    // An agent that has not read everything resets the connection.
    let _ = socket.read_to_end(&mut bytes);
    Ok(bytes)
}

/// A request of version 1 with these numbers: size, depth, chain, signal-every, inline, sge; iterations, time.
fn request(program: u8, numbers: [u32; 6], times: [u64; 2]) -> Vec<u8> {
    let numbers = numbers.map(u32::to_be_bytes);
    let times = times.map(u64::to_be_bytes);
    [&b"FBPG\x01"[..], &[program, 0, 0], numbers.as_flattened(), times.as_flattened()].concat()
}

/// What strangers send to an agent by TCP is refused, and the next client is served.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn strangers_over_tcp_are_refused_and_the_next_is_served() {
    let place = Place::new();
    let port = 7536;
    let (agent, address) = agent(&place, port);
    let second = 1_000_000_000;
    let good = request(7, [64, 16, 1, 1, 0, 1], [10, second]);
    let ticket = |gid: [u8; 16]| {
        let numbers = [17, 1, 4096, 5].map(u32::to_be_bytes);
        [&b"FBPT"[..], &[0, 0, 0, 1], numbers.as_flattened(), &gid].concat()
    };
    let foreign = ticket([0x20; 16]);
    let refused = |reason: u8| [0, 8, b'F', b'B', b'P', b'R', 0, 0, 0, reason].to_vec();
    let (version, program, other_address) = (refused(0), refused(1), refused(3));
    let strangers: [(Vec<Vec<u8>>, &[u8]); 12] = [
        (vec![b"GET / HTTP/1.1\r\n\r\n".to_vec()], &version),
        (vec![good[..47].to_vec()], &version),
        (vec![Vec::new()], b""),
        (vec![vec![0xff; 4096]], &version),
        (vec![request(0, [64, 16, 1, 1, 0, 1], [10, second])], &program),
        (vec![request(15, [64, 16, 1, 1, 0, 1], [10, second])], &program),
        (vec![request(7, [u32::MAX, 16, 1, 1, 0, 1], [10, second])], &program),
        (vec![request(7, [64, u32::MAX, 1, 1, 0, 1], [10, second])], &program),
        (vec![request(7, [64, 16, 1, 1, 0, u32::MAX], [10, second])], &program),
        (vec![request(7, [64, 16, 1, 1, 0, 1], [0, u64::MAX])], &program),
        (vec![good.clone(), foreign[..20].to_vec()], b""),
        (vec![good, foreign], &other_address),
    ];
    for (index, (frames, expected)) in strangers.into_iter().enumerate() {
        assert_eq!(answer(port, &frames).unwrap(), expected, "stranger {index}");
    }
    // Silence is waited for, and then the next is served.
    let silent = TcpStream::connect(address.trim_start_matches("rdma://")).unwrap();
    for way in ["manager", "tcp"] {
        let client = ["ping-pong", "--mode", "send", "--connect", &address, "--rdma-connect", way];
        measure(&place, &[&client[..], &["--iterations", "200"]].concat());
    }
    drop(silent);
    agent.signal(Signal::INT);
    assert_eq!(agent.end().code, Some(0));
}
