//! Peers that do not keep to the program, on a device. Run these one at a time in a machine of `tools/soft-roce`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use super::super::device::Wish;
use super::super::manager::Destination;
use super::super::opened::Devices;
use super::end::End;
use super::wire::Message;
use super::{Address, Duration, RdmaConnect};
use super::{
    Figures, Program, ProgramError, ProgramListener, ProgramPlan, ProgramReport, managed, meeting, run,
    run_program,
};

fn never() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

fn address(port: u16) -> Address {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    format!("rdma://{host}:{port}").parse().unwrap()
}

fn plan(program: Program) -> ProgramPlan {
    ProgramPlan { iterations: Some(50), ..ProgramPlan::new(program, 64) }
}

/// Ends what waits for this, when it is dropped.
struct Stop<'a>(&'a OwnedFd);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        rustix::io::write(self.0, &[1; 8]).unwrap();
    }
}

type Outcome = Result<Option<ProgramReport>, ProgramError>;

/// Runs this peer against a listener, and returns how the listener's program ended. Afterwards the listener serves a good peer.
#[track_caller]
fn serve(port: u16, peer: impl FnOnce(&Address)) -> Outcome {
    let (address, stop) = (address(port), never());
    let listener = ProgramListener::open(&address).unwrap();
    let (outcomes, received) = mpsc::channel();
    std::thread::scope(|scope| {
        // A peer that fails ends the listener, too.
        let _stopped = Stop(&stop);
        scope.spawn(|| {
            for _ in 0..2 {
                outcomes.send(listener.serve_next(stop.as_fd())).unwrap();
            }
        });
        peer(&address);
        let outcome = received.recv().unwrap();
        let wait = Duration::from_secs(10);
        let report = run_program(&plan(Program::Send), (&address, RdmaConnect::Manager), wait, stop.as_fd());
        assert_eq!(report.unwrap().figures.iterations, 50);
        assert!(received.recv().unwrap().unwrap().is_some());
        outcome
    })
}

/// Connects as the end that dials, does this, and waits until the other end has given up.
fn dial(address: &Address, plan: &ProgramPlan, part: impl FnOnce(&mut End<'_>)) {
    let stop = never();
    let wait = Duration::from_secs(10);
    let (resources, watch) =
        meeting::dial(plan, (address, RdmaConnect::Manager), wait, stop.as_fd()).unwrap();
    let mut end = run::prepare(plan, resources, watch, true).unwrap();
    part(&mut end);
    end.watch.await_end(30_000_000_000).unwrap();
}

/// Whether an end says that its peer does not keep to the program.
fn is_malformed(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(|error| error.to_string() == super::end::malformed().to_string())
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn requests_of_strangers_are_refused() {
    let good = plan(Program::Send);
    let requests = [
        (&b""[..], "version"),
        (&[0xff; 48], "version"),
        (&good.emit()[..4], "version"),
        // The rest is zeros.
        (&good.emit()[..28], "options"),
        (&ProgramPlan { depth: u32::MAX, ..good }.emit(), "options"),
        (&ProgramPlan { size: u32::MAX, ..good }.emit(), "options"),
        (&ProgramPlan { time_ns: u64::MAX, ..good }.emit(), "options"),
        // A program that librdmacm does not connect.
        (&ProgramPlan { program: Program::UdSend, ..good }.emit(), "program"),
    ];
    for ((request, part), port) in requests.into_iter().zip(19_300..) {
        let outcome = serve(port, |address| {
            let (devices, stop) = (Devices::new(Wish::from_environment(None).unwrap()), never());
            let to = Destination::resolve(address).unwrap();
            let refused = managed::dial_with(&good, request, (&to, &devices), stop.as_fd());
            let sentence = refused.map(|_| ()).unwrap_err().to_string();
            assert!(sentence.contains(part), "{sentence}");
        });
        assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn blocks_that_are_too_few_end_the_program() {
    let outcome = serve(19_310, |address| {
        dial(address, &plan(Program::Rdma3), |end| {
            let mut buffers = end.buffers();
            buffers.len = 63;
            end.send_message(&buffers).unwrap();
        });
    });
    assert!(is_malformed(&outcome), "{outcome:?}");
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn message_out_of_turn_ends_the_program() {
    for (port, twice) in [(19_311, true), (19_312, false)] {
        let outcome = serve(port, |address| {
            dial(address, &plan(Program::Rdma1), |end| {
                let buffers = end.buffers();
                if twice {
                    end.send_message(&buffers).unwrap();
                }
                let end_message = Message { what: super::wire::MessageKind::End, ..buffers };
                end.send_message(if twice { &buffers } else { &end_message }).unwrap();
            });
        });
        assert!(is_malformed(&outcome), "{outcome:?}");
    }
}

/// What a peer says that it has seen is passed on as it is.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn end_with_extreme_numbers_is_an_end() {
    let max = u64::MAX;
    let outcome = serve(19_313, |address| {
        dial(address, &plan(Program::Rdma1), |end| {
            let buffers = end.buffers();
            end.send_message(&buffers).unwrap();
            let figures = Figures { iterations: 0, total_ns: max, p50_ns: max, ..Figures::default() };
            let what = super::wire::MessageKind::End;
            let last =
                Message { what, verified: max, wrong: max, lost: max, wall_ns: max, figures, ..buffers };
            end.send_message(&last).unwrap();
        });
    });
    let report = outcome.unwrap().unwrap();
    assert_eq!((report.client.verified, report.client.wall_ns, report.figures.total_ns), (max, max, max));
}

/// A peer that names an address outside its memory ends the program with the error of its device, at once.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn key_that_opens_nothing_is_reported_by_the_device() {
    for (program, port) in [(Program::Rdma3, 19_314), (Program::WriteAck, 19_315), (Program::ReadAck, 19_316)]
    {
        let outcome = serve(port, |address| {
            dial(address, &plan(program), |end| {
                let mut buffers = end.buffers();
                buffers.key ^= 0xff;
                end.send_message(&buffers).unwrap();
                let far = end.await_message(super::wire::MessageKind::Buffers, None, 10_000_000_000).unwrap();
                let far = end.far(&far, 1).unwrap();
                // As far as the agent answers. What it does then fails.
                assert!(run::work(end, far).is_err());
            });
        });
        let sentence = outcome.unwrap_err().to_string();
        assert!(!sentence.contains("answer"), "{program:?}: {sentence}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn mute_peer_is_given_up() {
    let outcome = serve(19_317, |address| {
        dial(address, &plan(Program::Send), |_| {});
    });
    assert!(matches!(outcome, Err(ProgramError::NoAnswer)), "{outcome:?}");
}

/// A block with one wrong byte, at an end or between the ends, is counted by the end that answers.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn wrong_bytes_are_counted() {
    // Blocks up to the first one that is compared whole.
    const LAST: u64 = 128;
    for (program, port) in [(Program::Send, 19_318), (Program::WriteAck, 19_319)] {
        let outcome = serve(port, |address| {
            dial(address, &plan(program), |end| {
                let buffers = end.buffers();
                end.send_message(&buffers).unwrap();
                let kind = super::wire::MessageKind::Buffers;
                let far = end.await_message(kind, None, 10_000_000_000).unwrap();
                let mut ping = end.outbox();
                if program == Program::Send {
                    ping.send(&end.near, 0, &end.resources);
                } else {
                    ping.write(&end.near, 0, end.far(&far, 1).unwrap().block(0));
                    ping.token(&end.near);
                }
                let count = if program == Program::Send { 1 } else { 2 };
                let region = std::sync::Arc::clone(&end.near.region);
                let mut flip = |end: &mut End<'_>, number: u64, offset: usize| {
                    ping.fill(0, number, &mut end.scratch);
                    if offset > 0 {
                        let memory = region.region();
                        memory.store(offset, memory.load(offset) ^ (1 << 17));
                    }
                    end.post_last(&mut ping, count).unwrap();
                    // A message has no answer if its block is wrong.
                    if program == Program::WriteAck || offset == 0 || number == LAST {
                        let arrival = end.receive(None).unwrap().unwrap();
                        end.repost(arrival).unwrap();
                    }
                };
                for number in 1..LAST {
                    flip(end, number, 0);
                }
                // In the middle, which only a whole comparison finds, and then in the last word.
                flip(end, LAST, 32);
                flip(end, LAST + 1, 56);
                let end_message = Message { what: super::wire::MessageKind::End, ..buffers };
                end.send_message(&end_message).unwrap();
            });
        });
        let report = outcome.unwrap().unwrap();
        let found = (report.agent.wrong, report.agent.verified, report.agent.whole);
        assert_eq!(found, (2, LAST, 0), "{program:?}");
    }
}
