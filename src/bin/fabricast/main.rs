//! The command line.
mod perf;
use clap::Parser;
#[derive(Parser)]
struct Cli {
    #[arg(long, global = true)]
    runtime_dir: Option<std::path::PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}
#[derive(clap::Subcommand)]
enum Verb {
    Perf(perf::Arguments),
}
fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let Verb::Perf(a) = &cli.verb;
    match perf::run(a, cli.runtime_dir.as_deref()) {
        Ok(c) => c,
        Err(e) => {
            eprintln!("fabricast: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
