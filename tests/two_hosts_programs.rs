//! The programs of one queue pair between two hosts with RDMA devices: each of these tests is one host's part, and its counterpart
//! runs on the other host at the same time:
//!
//! ```text
//! tools/soft-roce run2 'two_hosts_programs --ignored --exact programs_that_answer' \
//!     'two_hosts_programs --ignored --exact programs_that_drive'
//! ```
//!
//! FABRICAST_TEST_PROGRAMS=reliable leaves out those that lose blocks on a wire that loses packets.

#![cfg(feature = "verbs")]

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use fabricast::measure::{Program, ProgramListener, ProgramPlan, Served, run_program};
use fabricast::{Address, RdmaConnect};

/// Of these tests alone: the programs of another test may still listen on the other host.
const PORT: u16 = 7473;
/// How long the other host may take to listen.
const WAIT: Duration = Duration::from_secs(60);
/// Round trips of each program.
const ITERATIONS: u64 = 300;

/// The address of this host, or of the other one.
fn host(variable: &str) -> Address {
    let host = std::env::var(variable).expect("tools/soft-roce run2 tells the addresses");
    format!("rdma://{host}:{PORT}").parse().expect("an address")
}

/// What never says that a run is to stop.
fn never() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor")
}

/// All runs, in the same order on both hosts.
fn runs() -> Vec<(ProgramPlan, RdmaConnect)> {
    let (managed, exchanged) = (RdmaConnect::Manager, RdmaConnect::Tcp);
    let reliable = [
        Program::Rdma1,
        Program::Rdma1e,
        Program::Rdma2,
        Program::Rdma3,
        Program::WriteAck,
        Program::ReadAck,
        Program::Send,
        Program::Write,
        Program::Read,
        Program::BlastWrite,
        Program::BlastRead,
    ];
    let lossy = [Program::UcSend, Program::UcWrite, Program::UdSend];
    let mut runs = Vec::new();
    for program in reliable {
        for (connect, size) in [(managed, 64), (exchanged, 64), (managed, 9001)] {
            runs.push((plan(program, size), connect));
        }
    }
    let mut sleeping = plan(Program::Send, 64);
    sleeping.events = true;
    runs.push((sleeping, managed));
    if !loses_packets() {
        lossy.iter().for_each(|program| runs.push((plan(*program, 1000), exchanged)));
    }
    runs
}

/// Whether the wire between the hosts loses packets.
fn loses_packets() -> bool {
    match std::env::var("FABRICAST_TEST_PROGRAMS").as_deref() {
        Ok("reliable") => true,
        Err(_) => false,
        Ok(other) => panic!("unknown value: {other}"),
    }
}

fn plan(program: Program, size: u32) -> ProgramPlan {
    let mut plan = ProgramPlan::new(program, size);
    plan.iterations = Some(ITERATIONS);
    plan
}

/// Host A: answers each of the programs.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn programs_that_answer() {
    let never = never();
    let listener = ProgramListener::open(&host("SELF")).expect("an address of a device");
    // On a wire that loses packets the other host may dial again when its first request was answered too late.
    let again_max = if loses_packets() { 2 } else { 0 };
    for (plan, connect) in runs() {
        let mut again = again_max;
        let report = loop {
            match listener.serve_next(never.as_fd()) {
                Ok(Served::Done(report)) => break report,
                Ok(Served::Failed { error, .. }) if again > 0 => println!("{plan:?} {connect:?}: {error}"),
                served => panic!("{plan:?} {connect:?}: {served:?}"),
            }
            again -= 1;
        };
        assert_eq!((report.client.wrong, report.agent.wrong), (0, 0), "{plan:?} {connect:?} {report:?}");
    }
}

/// Host B: runs each of the programs against the other host.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn programs_that_drive() {
    let (never, peer) = (never(), host("PEER"));
    let mut late = Vec::new();
    for (plan, connect) in runs() {
        let report = run_program(&plan, (&peer, connect), WAIT, never.as_fd());
        let report = report.unwrap_or_else(|error| panic!("{plan:?} {connect:?}: {error}"));
        let (client, agent, figures) = (report.client, report.agent, report.figures);
        println!("{:?} {} B {connect:?}: {figures:?}, lost {}", plan.program, plan.size, client.lost);
        assert_eq!((client.wrong, agent.wrong), (0, 0), "{plan:?} {connect:?} {report:?}");
        assert_eq!(figures.iterations, ITERATIONS, "{plan:?} {connect:?} {report:?}");
        assert!(client.verified + agent.verified > 0 && client.whole + agent.whole > 0, "{report:?}");
        // Over an unreliable queue pair a block counts as lost if the other host stands still for a quarter of a second.
        let is_late =
            matches!(plan.program, Program::UcSend | Program::UcWrite | Program::UdSend) && client.lost > 0;
        late.extend(is_late.then_some(plan.program));
        assert!(is_late || client.lost == 0, "{plan:?} {connect:?} {report:?}");
    }
    assert!(late.is_empty(), "TOO SLOW: {late:?} lost blocks");
}
