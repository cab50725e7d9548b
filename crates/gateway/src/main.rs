//! The binary: parses the command line and hands over.

use std::process::ExitCode;

use clap::Parser as _;
use entrega_gateway::cli::{self, Cli};

/// Jobs are made on one thread and let go on another all the time; the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("entrega: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(cli::run(cli))
}
