//! The programs that checks and tests need besides the toolchain.
//!
//! Owns: the table of tools, how each is looked for and how it is installed.
//! Invariant: a tool that is missing is named, with the tests it leaves out;
//! only a missing part of the toolchain is an error.
//! Never: installs anything that is already there.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::root;

/// Names, separated by commas, the tools that could not be had. A test that
/// needs one of them passes over itself when it is listed here, and fails
/// otherwise: a missing tool is thus never a test that silently did nothing.
pub(crate) const WITHOUT: &str = "ENTREGA_WITHOUT";

struct Tool {
    name: &'static str,
    /// Ends well when the tool is there.
    probe: &'static [&'static str],
    source: Source,
    /// What goes unchecked without it.
    serves: &'static str,
}

enum Source {
    /// Comes with the toolchain; nothing works without it.
    Toolchain,
    /// A Debian package.
    Apt(&'static str),
    /// Python packages, in an interpreter of the project's own.
    Python(&'static [&'static str]),
}

/// Where the project's own Python is, from the root of the workspace. Tests look for it there.
const PYTHON: &str = "target/tools/python";

#[rustfmt::skip]
const TOOLS: &[Tool] = &[
    Tool::toolchain("rustfmt", &["cargo", "fmt", "--version"], "the format"),
    Tool::toolchain("clippy", &["cargo", "clippy", "--version"], "the lints"),
    Tool::toolchain("git", &["git", "--version"], "the list of files for the house rules"),
    Tool::apt("redis-server", &["redis-server", "--version"], "redis-server", "the Redis store"),
    Tool::apt("smtp-sink", &["sh", "-c", "PATH=$PATH:/usr/sbin command -v smtp-sink"], "postfix", "mail in volume"),
    Tool::apt("strace", &["strace", "-f", "true"], "strace", "power cuts and failing disks under the real process"),
    Tool::apt("node", &["node", "--version"], "nodejs", "the webhook receiver in Node"),
    Tool::apt("php", &["php", "--version"], "php-cli", "the webhook receiver in PHP"),
    Tool {
        name: "python",
        probe: &["target/tools/python/bin/python3", "-c", "import aiosmtpd, moto.server, schemathesis, standardwebhooks"],
        source: Source::Python(&[
            "aiosmtpd==1.4.6",
            "moto[server]==5.2.5",
            "schemathesis==4.32.5",
            "standardwebhooks==1.1.0",
        ]),
        serves: "mail over SMTP and SES, webhooks in Python, the API against its description",
    },
];

impl Tool {
    const fn toolchain(name: &'static str, probe: &'static [&'static str], serves: &'static str) -> Self {
        let source = Source::Toolchain;
        Self { name, probe, source, serves }
    }

    const fn apt(
        name: &'static str,
        probe: &'static [&'static str],
        package: &'static str,
        serves: &'static str,
    ) -> Self {
        let source = Source::Apt(package);
        Self { name, probe, source, serves }
    }
}

/// What could not be had.
#[derive(Default)]
pub(crate) struct Missing(Vec<(&'static str, &'static str)>);

impl Missing {
    /// The names as [`WITHOUT`] carries them.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|(name, _)| *name).collect();
        names.join(",")
    }

    pub(crate) fn print(&self) {
        for (name, serves) in &self.0 {
            println!("MISSING {name}: this run leaves out {serves}");
        }
    }
}

/// Looks for every tool, installs what is missing, says what stays missing.
pub(crate) fn ensure() -> Result<Missing> {
    ensure_each(TOOLS, runs, install)
}

fn install(source: &Source) -> bool {
    match source {
        Source::Toolchain => false,
        Source::Apt(package) => install_package(package),
        Source::Python(packages) => install_python(packages),
    }
}

/// Whether cargo has this subcommand.
pub(crate) fn has_cargo(name: &str) -> bool {
    runs(&["cargo", name, "--version"])
}

fn ensure_each(tools: &[Tool], there: impl Fn(&[&str]) -> bool, install: impl Fn(&Source) -> bool) -> Result<Missing> {
    let mut missing = Missing::default();
    for tool in tools {
        if there(tool.probe) {
            println!("{:<14} there", tool.name);
            continue;
        }
        if let Source::Toolchain = tool.source {
            bail!("{} is missing; it checks {}", tool.name, tool.serves);
        }
        // A package can fail because its service does not start; the tests need only the program.
        let is_clean = install(&tool.source);
        if there(tool.probe) {
            println!("{:<14} installed", tool.name);
            continue;
        }
        let how = if is_clean { "does not bring it" } else { "failed" };
        println!("{:<14} MISSING, installing it {how}", tool.name);
        missing.0.push((tool.name, tool.serves));
    }
    missing.print();
    Ok(missing)
}

fn runs(probe: &[&str]) -> bool {
    let Some((program, args)) = probe.split_first() else {
        return false;
    };
    Command::new(program)
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Debian keeps the making of environments in a package of its own.
fn install_python(packages: &[&str]) -> bool {
    let make = || runs(&["python3", "-m", "venv", PYTHON]);
    let pip = format!("{PYTHON}/bin/pip");
    let install = [&[pip.as_str(), "install", "--quiet"], packages].concat();
    println!("$ {}", install.join(" "));
    (make() || (install_package("python3-venv") && make())) && runs(&install)
}

/// Lists of packages age, so they are fetched anew when the first try fails.
fn install_package(package: &str) -> bool {
    let install = ["install", "-y", "--no-install-recommends", package];
    apt_get(&install) || (apt_get(&["update"]) && apt_get(&install))
}

fn apt_get(args: &[&str]) -> bool {
    println!("$ apt-get {}", args.join(" "));
    Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const REDIS: Tool = Tool::apt("redis", &["redis", "--version"], "redis-pkg", "the store");
    const CLIPPY: Tool = Tool::toolchain("clippy", &["clippy"], "the lints");

    #[test]
    fn a_tool_that_is_there_is_not_installed() {
        let missing = ensure_each(&[REDIS], |_| true, |_| panic!("it is there")).unwrap();
        assert_eq!(missing.names(), "");
    }

    #[test]
    fn a_tool_is_there_only_when_its_probe_says_so_after_installing() {
        let installed = Cell::new(false);
        let install = |source: &Source| {
            installed.set(matches!(source, Source::Apt("redis-pkg")));
            true
        };
        let found = ensure_each(&[REDIS], |_| installed.get(), install).unwrap();
        assert_eq!(found.names(), "");

        let broken = ensure_each(&[REDIS], |_| false, |_| true).unwrap();
        assert_eq!(broken.names(), "redis");
    }

    #[test]
    fn a_package_whose_service_does_not_start_still_brings_its_program() {
        let installed = Cell::new(false);
        let install = |_: &Source| {
            installed.set(true);
            false
        };
        let found = ensure_each(&[REDIS], |_| installed.get(), install).unwrap();
        assert_eq!(found.names(), "");
    }

    #[test]
    fn a_missing_part_of_the_toolchain_is_an_error() {
        assert!(ensure_each(&[CLIPPY], |_| false, |_| true).is_err());
    }

    #[test]
    fn a_probe_that_cannot_start_or_ends_badly_means_missing() {
        assert!(runs(&["true"]));
        assert!(!runs(&["false"]));
        assert!(!runs(&["no-such-program-anywhere"]));
        assert!(!runs(&[]));
    }
}
