//! `perf ping-pong` and `perf blast`: programs of one RDMA queue pair, between two processes.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use fabricast::measure::{Program, ProgramError, ProgramListener, ProgramPlan, Served, run_program};
use fabricast::{Address, ErrorChain, FabricError, RdmaConnect, VerbsError};

use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::{Arguments, FabricName, Mode};
use super::process::{Process, command, inherited};
use super::program_line::{ProgramLine, Subject};
use super::program_options::ProgramMode;
use super::trouble::{Quiet, Trouble};

/// Where a process listens that a user has started, unless an argument says so.
const ANYWHERE: &str = "rdma://0.0.0.0";

/// Serves each measuring process in turn, or the one that has started this one.
pub(super) fn serve(arguments: &Arguments) -> Result<Exit, Trouble> {
    let is_started = arguments.program.answer;
    if is_started {
        inherited()?;
    }
    arguments.cpus.settled()?.pin_answering()?;
    let interrupt = Interrupt::install()?;
    let at = match (&arguments.rdma, FabricName::Verbs.rdma()) {
        (Some(address), _) => address.clone(),
        (None, Some(free)) if is_started => free,
        _ => ANYWHERE.parse()?,
    };
    let listener = ProgramListener::open(&at).map_err(|error| match error {
        ProgramError::Fabric(
            error @ (FabricError::AddressInUse { .. } | FabricError::Verbs(VerbsError::NoSuchAddress { .. })),
        ) => Failure::of(Exit::Usage, &error),
        error => failure(error),
    })?;
    for address in listener.addresses() {
        if is_started {
            writeln!(std::io::stdout(), "{address}")?;
            break;
        }
        let command = arguments.measuring_command(&address, "");
        writeln!(std::io::stdout(), "answering at {address}: measure with `{command} --mode OPERATIONS`")?;
    }
    std::io::stdout().flush()?;
    serve_all(&listener, is_started, interrupt.handle()?)
}

/// Serves peers until `stop` becomes readable.
fn serve_all(listener: &ProgramListener, is_started: bool, stop: BorrowedFd<'_>) -> Result<Exit, Trouble> {
    let mut reported = String::new();
    loop {
        match listener.serve_next(stop) {
            Ok(Served::Failed { client, error }) if !is_started => {
                let client =
                    client.map_or_else(|| "a client".to_owned(), |client| format!("the client at {client}"));
                let why = ErrorChain(&error);
                let sentence = format!(
                    "the program of {client} did not run to its end: {why}; waiting for the next client"
                );
                Failure::new(Exit::No, sentence).note();
            }
            // The measuring process sees nothing but the end of the connection, unless it has ended it.
            Ok(Served::Failed { error, .. }) if !matches!(error, ProgramError::Gone) => failure(error).note(),
            Ok(_) => {}
            Err(ProgramError::Stopped) => return Ok(Exit::Done),
            // It may last, and is reported once.
            Err(error) => {
                let sentence = ErrorChain(&error).to_string();
                if sentence != reported {
                    failure(error).note();
                    reported = sentence;
                }
            }
        }
    }
}

/// Runs the program with each size, and prints a line for each. The exit code says whether every block was right.
pub(super) fn measure(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    let Some(mode) = arguments.program.mode else { return Err("a program needs a --mode".into()) };
    let cpus = arguments.cpus.settled()?;
    if arguments.connect.is_none() {
        // To see whether the other process can.
        cpus.pin_answering()?;
    }
    cpus.pin_measuring()?;
    for size in &arguments.size {
        plan(arguments, mode, *size).check().map_err(failure)?;
    }
    let interrupt = Interrupt::install()?;
    let mut started = None;
    let address = match &arguments.connect {
        Some(address) => address.clone(),
        None => {
            let mut command = command(setting, arguments.mode)?;
            command.args(["--serve", "--answer", "--cpus", &cpus.to_string()]);
            let mut process = Process::start("answering", command, File::open("/dev/null")?.into())?;
            // Ctrl-C in a terminal ends both.
            let line = process.line().map_err(|trouble| match interrupt.came() {
                true => Quiet(Exit::Interrupted).into(),
                false => trouble,
            });
            let address = line?.parse()?;
            started = Some(process);
            address
        }
    };
    let stop = interrupt.handle()?;
    let mut heading = (!arguments.json).then(ProgramLine::heading);
    let mut is_right = true;
    for size in &arguments.size {
        let line = match one(arguments, setting, (mode, *size), (&address, stop)) {
            Ok(line) => line,
            Err(ProgramError::Stopped) => return Ok(Exit::Interrupted),
            Err(error) => {
                let failure = failure(error).at(&address);
                return Err(match &mut started {
                    Some(process) => process.explain(failure.into()),
                    None => failure.into(),
                });
            }
        };
        if let Some(heading) = heading.take() {
            writeln!(std::io::stdout(), "{heading}")?;
        }
        is_right &= line.is_right();
        let text = if arguments.json { serde_json::to_string(&line)? } else { line.text() };
        writeln!(std::io::stdout(), "{text}")?;
    }
    let wrong = "some blocks differ from those sent: see the column `wrong`, with --json `rejected`";
    if is_right { Ok(Exit::Done) } else { Err(Failure::new(Exit::No, wrong).into()) }
}

/// Runs the program with one size.
fn one(
    arguments: &Arguments,
    setting: &Setting,
    (mode, size): (ProgramMode, u32),
    (address, stop): (&Address, BorrowedFd<'_>),
) -> Result<ProgramLine, ProgramError> {
    let plan = plan(arguments, mode, size);
    let is_unreliable = matches!(mode, ProgramMode::UcSend | ProgramMode::UcWrite | ProgramMode::UdSend);
    let usual = if is_unreliable { RdmaConnect::Tcp } else { RdmaConnect::Manager };
    let connect = setting.chosen_connect().unwrap_or(usual);
    let wait = Duration::from_secs_f64(arguments.wait);
    let report = run_program(&plan, (address, connect), wait, stop)?;
    let rdma_connect = match connect {
        RdmaConnect::Tcp => "tcp",
        RdmaConnect::TcpUnreliable => "tcp-unreliable",
        _ => "manager",
    };
    let connect = arguments.connect.as_ref().map_or_else(|| rdma_connect.to_owned(), ToString::to_string);
    let subject = Subject { mode: arguments.mode.name(), program: mode.name(), connect, rdma_connect, size };
    Ok(ProgramLine::of(subject, &report))
}

/// The plan that the arguments describe.
fn plan(arguments: &Arguments, mode: ProgramMode, size: u32) -> ProgramPlan {
    let program = match (mode, arguments.mode) {
        (ProgramMode::Write, Mode::Blast) => Program::BlastWrite,
        (ProgramMode::Read, Mode::Blast) => Program::BlastRead,
        (ProgramMode::Rdma1, _) => Program::Rdma1,
        (ProgramMode::Rdma1e, _) => Program::Rdma1e,
        (ProgramMode::Rdma2, _) => Program::Rdma2,
        (ProgramMode::Rdma3, _) => Program::Rdma3,
        (ProgramMode::WriteAck, _) => Program::WriteAck,
        (ProgramMode::ReadAck, _) => Program::ReadAck,
        (ProgramMode::Send | ProgramMode::SendEvent, _) => Program::Send,
        (ProgramMode::Write, _) => Program::Write,
        (ProgramMode::Read, _) => Program::Read,
        (ProgramMode::UcSend, _) => Program::UcSend,
        (ProgramMode::UcWrite, _) => Program::UcWrite,
        (ProgramMode::UdSend, _) => Program::UdSend,
    };
    let options = &arguments.program;
    let mut plan = ProgramPlan::new(program, size);
    let set = |to: &mut u32, option: Option<u32>| *to = option.unwrap_or(*to);
    set(&mut plan.inline, options.inline);
    set(&mut plan.sge, options.sge);
    set(&mut plan.depth, options.depth);
    set(&mut plan.chain, options.chain);
    set(&mut plan.signal_every, options.signal_every);
    if options.signal_every.is_none() {
        plan.signal_every = plan.signal_every.min(plan.signal_every_max());
    }
    plan.events = options.events || mode == ProgramMode::SendEvent;
    plan.iterations = arguments.iterations;
    plan.time_ns = u64::try_from(Duration::from_secs_f64(arguments.seconds).as_nanos()).unwrap_or(u64::MAX);
    plan
}

/// The failure of a program, with its exit code.
fn failure(error: ProgramError) -> Failure {
    match error {
        ProgramError::Fabric(error) => error.into(),
        ProgramError::Unfit { .. } => Failure::usage(error),
        ProgramError::NoListener { .. } | ProgramError::Unanswered { .. } | ProgramError::NotAProgram => {
            Failure::of(Exit::Unreachable, &error)
        }
        ProgramError::Refused { .. } => Failure::of(Exit::Refused, &error),
        ProgramError::NoAnswer => Failure::of(Exit::Hung, &error),
        _ => Failure::of(Exit::Gone, &error),
    }
}
