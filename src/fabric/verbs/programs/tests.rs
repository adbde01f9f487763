//! Peers that do not keep to the program, on a device. Run these one at a time in a machine of `tools/soft-roce`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use super::super::device::Wish;
use super::super::error::VerbsError;
use super::super::manager::Destination;
use super::super::opened::Devices;
use super::end::End;
use super::wire::Message;
use super::{Address, Duration, RdmaConnect};
use super::{
    Figures, Program, ProgramError, ProgramListener, ProgramPlan, Served, managed, meeting, run, run_program,
};
use crate::fabric::FabricError;

fn never() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

fn address(port: u16) -> Address {
    format!("rdma://{}:{port}", host()).parse().unwrap()
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

/// Runs this peer against a listener, and returns how it was served. Afterwards the listener serves a good peer.
#[track_caller]
fn serve(port: u16, peer: impl FnOnce(&Address)) -> Served {
    let (address, stop) = (address(port), never());
    let listener = ProgramListener::open(&address).unwrap();
    let (outcomes, received) = mpsc::channel();
    std::thread::scope(|scope| {
        // A peer that fails ends the listener, too.
        let _stopped = Stop(&stop);
        scope.spawn(|| {
            for _ in 0..2 {
                outcomes.send(listener.serve_next(stop.as_fd()).unwrap()).unwrap();
            }
        });
        peer(&address);
        let served = received.recv().unwrap();
        let wait = Duration::from_secs(10);
        let report = run_program(&plan(Program::Send), (&address, RdmaConnect::Manager), wait, stop.as_fd());
        assert_eq!(report.unwrap().figures.iterations, 50);
        assert!(matches!(received.recv().unwrap(), Served::Done(_)));
        served
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

/// Why a peer that came from this host was not served to its end.
#[track_caller]
fn failure(served: Served) -> ProgramError {
    match served {
        Served::Failed { client: Some(client), error } => {
            assert_eq!(client.ip().to_string(), host());
            error
        }
        served => panic!("{served:?}"),
    }
}

/// Checks that an end says that its peer does not keep to the program.
#[track_caller]
fn assert_malformed(served: Served) {
    assert_eq!(failure(served).to_string(), super::end::malformed().to_string());
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
        let served = serve(port, |address| {
            let (devices, stop) = (Devices::new(Wish::from_environment(None).unwrap()), never());
            let to = Destination::resolve(address).unwrap();
            let refused = managed::dial_with(&good, request, (&to, &devices), stop.as_fd());
            let sentence = refused.map(|_| ()).unwrap_err().to_string();
            assert!(sentence.contains(part), "{sentence}");
        });
        assert!(matches!(served, Served::Refused), "{served:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn blocks_that_are_too_few_end_the_program() {
    let served = serve(19_310, |address| {
        dial(address, &plan(Program::Rdma3), |end| {
            let mut buffers = end.buffers();
            buffers.len = 63;
            end.send_message(&buffers).unwrap();
        });
    });
    assert_malformed(served);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn message_out_of_turn_ends_the_program() {
    for (port, twice) in [(19_311, true), (19_312, false)] {
        let served = serve(port, |address| {
            dial(address, &plan(Program::Rdma1), |end| {
                let buffers = end.buffers();
                if twice {
                    end.send_message(&buffers).unwrap();
                }
                let end_message = Message { what: super::wire::MessageKind::End, ..buffers };
                end.send_message(if twice { &buffers } else { &end_message }).unwrap();
            });
        });
        assert_malformed(served);
    }
}

/// What a peer says that it has seen is passed on as it is.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn end_with_extreme_numbers_is_an_end() {
    let max = u64::MAX;
    let served = serve(19_313, |address| {
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
    let Served::Done(report) = served else { panic!("{served:?}") };
    assert_eq!((report.client.verified, report.client.wall_ns, report.figures.total_ns), (max, max, max));
}

/// A peer that names an address outside its memory ends the program with the error of its device, at once.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn key_that_opens_nothing_is_reported_by_the_device() {
    for (program, port) in [(Program::Rdma3, 19_314), (Program::WriteAck, 19_315), (Program::ReadAck, 19_316)]
    {
        let served = serve(port, |address| {
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
        let error = failure(served);
        let is_access = matches!(error, ProgramError::Fabric(FabricError::Verbs(VerbsError::RemoteAccess)));
        assert!(is_access, "{program:?}: {error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn mute_peer_is_given_up() {
    let served = serve(19_317, |address| {
        dial(address, &plan(Program::Send), |_| {});
    });
    assert!(matches!(failure(served), ProgramError::NoAnswer));
}

/// A block with one wrong byte, at an end or between the ends, is counted by the end that answers.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn wrong_bytes_are_counted() {
    // Blocks up to the first one that is compared whole.
    const LAST: u64 = 128;
    for (program, port) in [(Program::Send, 19_318), (Program::WriteAck, 19_319)] {
        let served = serve(port, |address| {
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
        let Served::Done(report) = served else { panic!("{served:?}") };
        let found = (report.agent.wrong, report.agent.verified, report.agent.whole);
        assert_eq!(found, (2, LAST, 0), "{program:?}");
    }
}
