//! Children: programs that live no longer than the row that needs them.
//!
//! Owns: starting, waiting for and ending other processes.
//! Invariant: a child dropped is a child killed and reaped.
//! Never: blocks the runtime while a child works.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const POLL: Duration = Duration::from_millis(20);

/// A running child; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name })
    }

    /// The child itself, e.g. for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, when it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let name = &self.name;
        self.child.try_wait().with_context(|| format!("cannot wait for {name}"))
    }

    /// Waits until it ends well; an error when it does not, or not in time.
    pub async fn finish(mut self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} ended with {status}", self.name),
                None if start.elapsed() > limit => bail!("{} took over {limit:?}", self.name),
                None => tokio::time::sleep(POLL).await,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a child that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end with everything it prints on our stderr.
pub async fn run(command: &mut Command, limit: Duration) -> Result<()> {
    eprintln!("bench: $ {}", shown(command));
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    Running::start(command)?.finish(limit).await
}

/// Runs a command to its end and gives back what it printed. The output goes
/// through a file: a pipe nobody empties would stop the child.
pub async fn output(command: &mut Command, scratch: &Path, limit: Duration) -> Result<String> {
    let path = scratch.join("stdout");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(file);
    Running::start(command)?.finish(limit).await?;
    std::fs::read_to_string(&path).context("cannot read a child's output")
}

/// Whether a program starts and ends well.
pub async fn works(program: &str, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    match Running::start(&mut command) {
        Ok(child) => child.finish(Duration::from_secs(20)).await.is_ok(),
        Err(_) => false,
    }
}

/// Makes sure of a program, by its Debian package when it is missing.
pub async fn ensure(program: &str, package: &str) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(300);
    if works(program, "--version").await {
        return Ok(());
    }
    eprintln!("bench: {program} is missing, trying to install {package}");
    let mut update = Command::new("apt-get");
    run(update.args(["-q", "update"]), LIMIT).await?;
    let mut install = Command::new("apt-get");
    install.args(["-q", "install", "-y", "--no-install-recommends", package]);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run(&mut install, LIMIT).await?;
    if !works(program, "--version").await {
        bail!("{package} is installed, but {program} does not start");
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_that_ends_badly_or_too_late_is_an_error() {
        let start = |args: &[&str]| Running::start(Command::new(args[0]).args(&args[1..]));
        let limit = Duration::from_secs(10);
        assert!(start(&["true"]).unwrap().finish(limit).await.is_ok());
        assert!(start(&["false"]).unwrap().finish(limit).await.is_err());
        let late = start(&["sleep", "60"]).unwrap();
        assert!(late.finish(Duration::ZERO).await.is_err());
        assert!(start(&["no-such-program-anywhere"]).is_err());
    }

    #[test]
    fn a_child_dropped_is_gone() {
        let running = Running::start(Command::new("sleep").arg("60")).unwrap();
        let entry = format!("/proc/{}", running.id());
        assert!(Path::new(&entry).exists());
        drop(running);
        assert!(!Path::new(&entry).exists());
    }

    #[tokio::test]
    async fn output_is_what_the_child_printed() {
        let scratch = tempfile::tempdir().unwrap();
        let mut echo = Command::new("echo");
        let limit = Duration::from_secs(10);
        let text = output(echo.arg("hello"), scratch.path(), limit).await;
        assert_eq!(text.unwrap(), "hello\n");
    }
}
