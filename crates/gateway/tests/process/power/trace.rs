//! The log of `strace -f -y`, read: what a process did to files, and what it told its callers.
//! Invariant: events are in the order in which they took effect; a call that another thread interrupted takes effect when
//! it returns.

use std::collections::HashMap;

/// The calls that are traced.
pub const CALLS: &str = "openat,close,write,pwrite64,writev,lseek,fsync,fdatasync,sync_file_range,rename,renameat,\
                         renameat2,unlink,unlinkat,ftruncate,fallocate,mkdir,mkdirat";

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A file was opened; `is_new`: emptied or made, if it was not there.
    Open {
        fd: u32,
        path: String,
        is_made: bool,
        is_emptied: bool,
        is_appending: bool,
    },
    Seek {
        fd: u32,
        to: u64,
    },
    Write {
        fd: u32,
        path: String,
        at: Option<u64>,
        bytes: Vec<u8>,
    },
    Resize {
        path: String,
        length: u64,
    },
    Sync {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    MakeFolder {
        path: String,
    },
    /// These jobs were acknowledged.
    Told {
        jobs: Vec<String>,
    },
}

/// Reads a whole log.
pub fn read(log: &str) -> Vec<Event> {
    let mut waiting: HashMap<&str, String> = HashMap::new();
    let mut events = Vec::new();
    for line in log.lines() {
        let (thread, call) = line.trim_start().split_once(' ').unwrap_or((line, ""));
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            waiting.insert(thread, begun.to_owned());
            continue;
        }
        let whole = match call.strip_prefix("<... ") {
            Some(rest) => {
                let Some(begun) = waiting.remove(thread) else { continue };
                let (_, rest) = rest.split_once(" resumed>").unwrap_or_else(|| panic!("no call: {line}"));
                begun.trim_end().to_owned() + rest
            }
            None => call.to_owned(),
        };
        events.extend(event(&whole));
    }
    events
}

/// What a whole line means, if it succeeded and matters.
fn event(call: &str) -> Option<Event> {
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let result: i64 = result.split(['<', ' ']).next()?.parse().ok()?;
    if result < 0 {
        return None;
    }
    let event = match name {
        "openat" => {
            let flags = arguments.rsplit("\", ").next()?;
            let has = |flag: &str| flags.split(['|', ',']).any(|given| given.trim() == flag);
            Event::Open {
                fd: u32::try_from(result).ok()?,
                path: texts(arguments).pop()?,
                is_made: has("O_CREAT"),
                is_emptied: has("O_TRUNC"),
                is_appending: has("O_APPEND"),
            }
        }
        "lseek" => Event::Seek { fd: handle(arguments)?.0, to: u64::try_from(result).ok()? },
        "write" | "writev" | "pwrite64" => return write(name, arguments, usize::try_from(result).ok()?),
        "ftruncate" => Event::Resize { path: handle(arguments)?.1, length: last_number(arguments)? },
        "fallocate" => panic!("the trace does not know how to follow {call}"),
        "fsync" | "fdatasync" => Event::Sync { path: handle(arguments)?.1 },
        "rename" | "renameat" | "renameat2" => {
            let [from, to] = texts(arguments).try_into().ok()?;
            Event::Rename { from, to }
        }
        "unlink" | "unlinkat" => Event::Remove { path: texts(arguments).pop()? },
        "mkdir" | "mkdirat" => Event::MakeFolder { path: texts(arguments).pop()? },
        _ => return None,
    };
    Some(event)
}

fn write(name: &str, arguments: &str, length: usize) -> Option<Event> {
    let (fd, path) = handle(arguments)?;
    let bytes = pieces(arguments).concat();
    if path.starts_with("socket:") || path.starts_with("TCP") {
        let text = String::from_utf8_lossy(&bytes);
        let jobs: Vec<String> =
            text.split("\"jobId\":\"").skip(1).filter_map(|rest| rest.get(..30)).map(str::to_owned).collect();
        return (text.contains("201 Created") && !jobs.is_empty()).then_some(Event::Told { jobs });
    }
    assert!(bytes.len() >= length, "the log holds {} of {length} bytes for {path}", bytes.len());
    let at = if name == "pwrite64" { Some(last_number(arguments)?) } else { None };
    Some(Event::Write { fd, path, at, bytes: bytes[..length].to_vec() })
}

/// The first argument, `7</data/store/0.jnl>`.
fn handle(arguments: &str) -> Option<(u32, String)> {
    let (fd, rest) = arguments.split_once('<')?;
    Some((fd.parse().ok()?, rest.split_once('>')?.0.to_owned()))
}

fn last_number(arguments: &str) -> Option<u64> {
    arguments.rsplit(',').next()?.trim().parse().ok()
}

/// The texts among the arguments.
fn texts(arguments: &str) -> Vec<String> {
    pieces(arguments).into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect()
}

/// Everything in quotes, with the escapes of C undone.
fn pieces(arguments: &str) -> Vec<Vec<u8>> {
    let (mut pieces, mut current) = (Vec::new(), None::<Vec<u8>>);
    let mut bytes = arguments.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match (&mut current, byte) {
            (None, b'"') => current = Some(Vec::new()),
            (None, _) => {}
            (Some(_), b'"') => pieces.extend(current.take()),
            (Some(piece), b'\\') => match bytes.next().unwrap() {
                first @ b'0'..=b'7' => {
                    let mut value = u32::from(first - b'0');
                    for _ in 0..2 {
                        let Some(digit) = bytes.next_if(|next| (b'0'..=b'7').contains(next)) else { break };
                        value = value * 8 + u32::from(digit - b'0');
                    }
                    piece.push(u8::try_from(value).unwrap());
                }
                b'n' => piece.push(b'\n'),
                b't' => piece.push(b'\t'),
                b'r' => piece.push(b'\r'),
                b'v' => piece.push(0x0b),
                b'f' => piece.push(0x0c),
                other => piece.push(other),
            },
            (Some(piece), byte) => piece.push(byte),
        }
    }
    pieces
}

#[test]
fn the_escapes_of_a_log_are_undone() {
    let bytes = pieces(r#"7</a>, "\1\0009\377\"\\\n\v(\33[", 11"#);
    assert_eq!(bytes, [b"\x01\x009\xff\"\\\n\x0b(\x1b["]);
}

#[test]
fn a_call_that_was_interrupted_is_put_together() {
    let log = "12  fsync(7</d/a> <unfinished ...>\n13  mkdir(\"/d/b\", 0777) = 0\n12  <... fsync resumed>) = 0\n\
               13  fsync(7</d/a>) = -1 EIO (Input/output error)\n";
    let events = read(log);
    assert!(
        matches!(&events[..], [Event::MakeFolder { path }, Event::Sync { path: synced }] if path == "/d/b" && synced == "/d/a"),
        "{events:?}"
    );
}
