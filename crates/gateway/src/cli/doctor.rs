//! `entrega doctor`: is everything as it should be?
//! Invariant: every line says what was found and, where something is wrong, what to do.
//! Never: changes anything, but that a deep check opens the store as a start does; it works without a server and without a
//! data directory.

use std::path::Path;

use entrega_call::CallError;
use entrega_core::lane::attempts_max;
use entrega_core::time::Time;
#[cfg(feature = "redis")]
use entrega_ledger::redis::{self, ServerInfo};
use http::StatusCode;
use rustix::fs::{Access, access, statvfs};
use serde_json::{Value, json};

use super::DoctorArgs;
use super::api::{Api, Connection};
use super::error::CliError;
use super::out::Out;
use super::settings;
use super::target::Target;
use super::text::clean;
use crate::config::Config;
use entrega::StoreKind;
use entrega::store::local::{LedgerError, scrub_store};
use entrega_call::Clock;

/// Files beside connections: the store's tables, logs, the listener.
const FILES_BESIDE: u64 = 256;
/// A server for mails that has not answered by then is taken for dead.
const PROBE_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// A clock before this is not set.
const CLOCK_MIN: Time = Time::from_millis(1_735_689_600_000);
/// A clock after this is wrong.
const CLOCK_MAX: Time = Time::from_millis(4_102_444_800_000);

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Ok,
    Info,
    Warn,
    Fail,
}

impl Mark {
    fn as_str(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Info => "info",
            Mark::Warn => "warn",
            Mark::Fail => "fail",
        }
    }
}

/// One line.
#[derive(Debug)]
struct Check {
    name: &'static str,
    mark: Mark,
    message: String,
}

fn check(name: &'static str, mark: Mark, message: impl Into<String>) -> Check {
    Check { name, mark, message: message.into() }
}

pub(super) async fn run(args: &DoctorArgs, connection: &Connection, out: &mut Out) -> Result<(), CliError> {
    let sources = args.config.sources();
    let origin = settings::origin(&sources).unwrap_or_else(|| "no file, so the defaults hold".into());
    let mut checks = Vec::new();
    let config = match Config::load(sources) {
        Ok(config) => {
            checks.push(check("configuration", Mark::Ok, origin));
            Some(config)
        }
        Err(error) => {
            checks.push(check("configuration", Mark::Fail, error.to_string()));
            None
        }
    };
    if let Some(config) = &config {
        checks.extend(check_data(config));
        if args.deep {
            checks.extend(check_store(config));
        }
        #[cfg(feature = "redis")]
        checks.extend(check_redis(config).await);
        checks.push(check_files(config));
        checks.extend(check_certificates(config));
        checks.extend(check_transports(config).await);
    }
    checks.push(check_clock(Clock::system().now()));
    let data = config.as_ref().map_or(Path::new("entrega-data"), |config| &config.store.data);
    checks.extend(check_server(connection.open_with(data)).await);
    print(&checks, out)
}

fn print(checks: &[Check], out: &mut Out) -> Result<(), CliError> {
    let row = |check: &Check| json!({ "check": check.name, "mark": check.mark.as_str(), "message": check.message });
    let answer = Value::Array(checks.iter().map(row).collect());
    out.answer(&answer, |_| {
        let line = |check: &Check| format!("{:4}  {:15} {}\n", check.mark.as_str(), check.name, check.message);
        checks.iter().map(line).collect()
    })?;
    match checks.iter().filter(|check| check.mark == Mark::Fail).count() {
        0 => Ok(()),
        failed => Err(CliError::Unhealthy { failed, total: checks.len() }),
    }
}

/// The ways out for mails: whether a server answers on each.
async fn check_transports(config: &Config) -> Vec<Check> {
    const NAME: &str = "mail";
    let clock = Clock::system();
    let transports = match config.transports(&clock) {
        Ok(transports) if transports.is_empty() => {
            return vec![check(NAME, Mark::Info, "no transport; SMTP_URL, or a url under [transports.main], sets one")];
        }
        Ok(transports) => transports,
        Err(error) => return vec![check(NAME, Mark::Fail, CliError::from(error).to_string())],
    };
    let mut checks = Vec::new();
    for transport in transports {
        let seen = transport.probe(clock.instant(clock.now() + PROBE_MAX)).await;
        let name = clean(transport.name());
        checks.push(match seen {
            Ok(seen) => check(NAME, Mark::Ok, format!("{name} {seen}")),
            Err(refusal) => check(NAME, Mark::Fail, format!("{name}: {}", clean(&refusal.reason()))),
        });
    }
    checks
}

/// The data directory: there, ours to write, with room on its disk.
fn check_data(config: &Config) -> Vec<Check> {
    const NAME: &str = "data directory";
    match config.store.kind {
        StoreKind::Memory => {
            return vec![check(NAME, Mark::Warn, "store.kind = \"memory\": jobs are gone when the process ends")];
        }
        #[cfg(feature = "redis")]
        StoreKind::Redis(_) => return vec![check_key_file(config)],
        StoreKind::Embedded => {}
    }
    let data = &config.store.data;
    let shown = data.display();
    let Some(there) = data.ancestors().map(or_here).find(|path| path.exists()) else {
        return vec![check(
            NAME,
            Mark::Fail,
            format!("{shown}: no part of this path exists; set store.data or --data"),
        )];
    };
    let is_there = there == or_here(data);
    let first = match access(there, Access::WRITE_OK | Access::EXEC_OK) {
        _ if !there.is_dir() => check(NAME, Mark::Fail, format!("{} is not a directory", there.display())),
        Err(error) => {
            let message =
                format!("{} cannot be written ({error}); give it to the user that runs entrega", there.display());
            check(NAME, Mark::Fail, message)
        }
        Ok(()) if is_there => check(NAME, Mark::Ok, format!("{shown} can be written")),
        Ok(()) => check(NAME, Mark::Info, format!("{shown} is made when `entrega serve` first starts")),
    };
    vec![first, check_space(there, config.store.free_space_min_mib), check_key_file(config)]
}

/// Everything in the store, read and compared with what was written.
fn check_store(config: &Config) -> Vec<Check> {
    const NAME: &str = "store";
    let data = &config.store.data;
    if config.store.kind != StoreKind::Embedded || !data.join("store").exists() {
        return vec![check(NAME, Mark::Info, "there is none on this disk to look into")];
    }
    let scrubbed = match scrub_store(data) {
        Ok(scrubbed) => scrubbed,
        Err(LedgerError::InUse { .. }) => {
            let message = "the gateway is running and reads its tables now and then by itself; what it found is in \
                           `unreadableRecords` of /health/ready. Stop it to have everything read at once";
            return vec![check(NAME, Mark::Info, message)];
        }
        Err(error) => return vec![check(NAME, Mark::Fail, error.to_string())],
    };
    let read = format!("{} table files with {} MiB were read", scrubbed.files, scrubbed.bytes >> 20);
    if scrubbed.damaged.is_empty() {
        return vec![check(NAME, Mark::Ok, format!("the journal is sound; {read}, all as they were written"))];
    }
    let line = |(file, places): &(String, u64)| {
        let message = format!(
            "{file} is damaged in {places} places; restore a backup, or: entrega salvage --from {} --to NEWDIR",
            data.display()
        );
        check(NAME, Mark::Fail, message)
    };
    scrubbed.damaged.iter().map(line).collect()
}

/// The empty path means the current directory.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn check_space(path: &Path, min_mib: u64) -> Check {
    const NAME: &str = "free space";
    let free_mib = match statvfs(path) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize) >> 20,
        Err(error) => return check(NAME, Mark::Warn, format!("cannot be told: {error}")),
    };
    match free_mib {
        free if free < min_mib => check(
            NAME,
            Mark::Fail,
            format!("{free} MiB, less than store.free_space_min_mib = {min_mib}: new work is refused; make room"),
        ),
        free if free < min_mib.saturating_mul(4) => {
            check(NAME, Mark::Warn, format!("{free} MiB; below {min_mib} MiB new work is refused"))
        }
        free => check(NAME, Mark::Ok, format!("{free} MiB")),
    }
}

/// The operator's key, readable by nobody else.
fn check_key_file(config: &Config) -> Check {
    use std::os::unix::fs::PermissionsExt;
    const NAME: &str = "admin key";
    let path = config.admin_key_file();
    let shown = path.display();
    match std::fs::metadata(&path) {
        _ if config.admin_key.is_some() => check(NAME, Mark::Ok, "set by ENTREGA_ADMIN_KEY"),
        Ok(file) if file.permissions().mode() & 0o077 != 0 => {
            check(NAME, Mark::Warn, format!("others can read {shown}; run: chmod 600 {shown}"))
        }
        Ok(_) => check(NAME, Mark::Ok, format!("in {shown}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            check(NAME, Mark::Info, "made and shown when `entrega serve` first starts")
        }
        Err(error) => check(NAME, Mark::Warn, format!("{shown}: {error}")),
    }
}

fn check_certificates(config: &Config) -> Option<Check> {
    const NAME: &str = "certificates";
    let file = config.outbound.ca_file.as_ref()?.display();
    let usable = config.client().map_err(|error| error.to_string()).and_then(|client| {
        entrega_call::Client::new(client).map_err(|error| format!("outbound.ca_file = {file}: {error}"))
    });
    Some(match usable {
        Ok(_) => check(NAME, Mark::Ok, format!("{file} is trusted")),
        Err(message) => check(NAME, Mark::Fail, message),
    })
}

#[cfg(feature = "redis")]
/// The server that keeps the jobs: whether it answers, is fit for that, and how full it is.
async fn check_redis(config: &Config) -> Vec<Check> {
    const NAME: &str = "redis";
    let StoreKind::Redis(url) = &config.store.kind else { return Vec::new() };
    let shown = redis::without_password(url.reveal());
    let info = match Box::pin(redis::server_info(url.reveal())).await {
        Ok(info) => info,
        Err(error) => return vec![check(NAME, Mark::Fail, error.to_string())],
    };
    let unfit = if config.store.allow_unsafe_redis { Mark::Warn } else { Mark::Fail };
    let fit = match info.check() {
        Ok(()) => check(NAME, Mark::Ok, format!("{shown} answers, version {}", info.version)),
        Err(error) => check(NAME, unfit, error.to_string()),
    };
    let durability = check("durability", Mark::Info, format!("a 2xx means: {}", info.durability()));
    vec![fit, durability, check_memory(&info)]
}

#[cfg(feature = "redis")]
fn check_memory(info: &ServerInfo) -> Check {
    const NAME: &str = "memory";
    let mib = |bytes: u64| bytes >> 20;
    let Some(ratio) = info.memory_ratio() else {
        let message = format!(
            "{} MiB used, and no limit: set maxmemory, or the system may end Redis when memory runs out",
            mib(info.memory_used)
        );
        return check(NAME, Mark::Warn, message);
    };
    let used = format!("{} of {} MiB used ({:.0} %)", mib(info.memory_used), mib(info.memory_max), ratio * 100.0);
    match info.memory_level() {
        0 => check(NAME, Mark::Ok, used),
        1 => check(NAME, Mark::Warn, format!("{used}; when it is full, new work is refused")),
        _ => check(NAME, Mark::Fail, format!("{used}; raise maxmemory, or let lanes drain before sending more")),
    }
}

/// One file for each connection, in and out, and some more.
fn check_files(config: &Config) -> Check {
    const NAME: &str = "open files";
    let attempts: u64 = config.lanes.values().map(|lane| u64::from(attempts_max(lane))).sum();
    let wanted = config.server.connections_max as u64 + attempts + FILES_BESIDE;
    let Ok(limits) = std::fs::read_to_string("/proc/self/limits") else {
        return check(NAME, Mark::Info, format!("the limit cannot be told here; {wanted} may be needed"));
    };
    match open_files_max(&limits) {
        Some(limit) if limit < wanted => check(
            NAME,
            Mark::Warn,
            format!(
                "{limit} may be open, {wanted} may be needed; raise it (ulimit -n {wanted}, or LimitNOFILE={wanted} in systemd)"
            ),
        ),
        Some(limit) => check(NAME, Mark::Ok, format!("{limit} may be open")),
        None => check(NAME, Mark::Ok, "no limit"),
    }
}

/// The soft limit in the table of `/proc/self/limits`; `None` for unlimited.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn check_clock(now: Time) -> Check {
    const NAME: &str = "clock";
    match (CLOCK_MIN..CLOCK_MAX).contains(&now) {
        true => check(NAME, Mark::Ok, now.to_string()),
        false => check(NAME, Mark::Fail, format!("{now} cannot be; set the clock (timedatectl set-ntp true)")),
    }
}

async fn check_server(api: Result<Api, CliError>) -> Vec<Check> {
    const NAME: &str = "server";
    let api = match api {
        Ok(api) => api,
        Err(error) => return vec![check(NAME, Mark::Fail, error.to_string())],
    };
    match api.probe(&Target::new("/health/live")).await {
        Ok(answer) if answer.status.is_success() => {
            let live = check(NAME, Mark::Ok, format!("{} answers", api.url()));
            vec![live, check_ready(&api).await, check_key(&api).await]
        }
        Ok(answer) => {
            let message = format!("{} answers {}; is it an Entrega server? See --url", api.url(), answer.status);
            vec![check(NAME, Mark::Fail, message)]
        }
        Err(CallError::Connect { .. }) => {
            vec![check(NAME, Mark::Info, format!("not running at {}; start it with `entrega serve`", api.url()))]
        }
        Err(error) => vec![check(NAME, Mark::Fail, format!("{}: {}", api.url(), error.reason()))],
    }
}

async fn check_ready(api: &Api) -> Check {
    const NAME: &str = "readiness";
    let answer = match api.probe(&Target::new("/health/ready")).await {
        Ok(answer) => answer,
        Err(error) => return check(NAME, Mark::Fail, error.reason()),
    };
    let health: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    let word = |key: &str| health.pointer(&format!("/store/{key}")).and_then(Value::as_str).map(clean);
    match (answer.status.is_success(), word("failure"), word("refuses")) {
        (false, Some(failure), _) if word("kind").as_deref() == Some("redis") => {
            check(NAME, Mark::Fail, format!("Redis cannot be reached: {failure}; mend it, the node goes on by itself"))
        }
        (false, Some(failure), _) => {
            check(NAME, Mark::Fail, format!("the store has stopped: {failure}; mend it, then restart"))
        }
        (false, None, _) => check(NAME, Mark::Fail, format!("not ready: {}", answer.status)),
        (true, _, Some(refusal)) => check(NAME, Mark::Warn, format!("takes no new work: {refusal}")),
        (true, ..) => check(NAME, Mark::Ok, "takes work"),
    }
}

async fn check_key(api: &Api) -> Check {
    const NAME: &str = "key";
    if !api.has_key() {
        return check(NAME, Mark::Warn, "none given and none found; use --key or ENTREGA_ADMIN_KEY");
    }
    match api.probe(&Target::new("/v1/lanes")).await.map(|answer| answer.status) {
        Ok(StatusCode::OK) => check(NAME, Mark::Ok, "accepted, with the scope admin"),
        Ok(StatusCode::FORBIDDEN) => check(NAME, Mark::Ok, "accepted, without the scope admin"),
        Ok(StatusCode::UNAUTHORIZED) => {
            check(NAME, Mark::Fail, "not known to this server; give its own with --key or ENTREGA_ADMIN_KEY")
        }
        Ok(status) => check(NAME, Mark::Fail, format!("the server answered {status}")),
        Err(error) => check(NAME, Mark::Fail, error.reason()),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_soft_limit_is_found() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             255                  255                  processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(open_files_max(limits), Some(1024));
        assert_eq!(open_files_max("Max open files            unlimited            unlimited            files"), None);
    }

    #[test]
    fn a_clock_that_was_never_set_is_noticed() {
        assert_eq!(check_clock(Time::ZERO).mark, Mark::Fail);
        assert_eq!(check_clock(Time::from_millis(1_800_000_000_000)).mark, Mark::Ok);
    }
}
