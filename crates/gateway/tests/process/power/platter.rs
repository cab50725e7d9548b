//! The platter: which bytes and names have reached the disk, and which are only in the kernel's memory.
//! Invariant: bytes are safe after a sync of their file, a name after a sync of its folder; nothing else is promised.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};

use super::trace::Event;

/// What a power cut does to that which was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it is gone, names too.
    Clean,
    /// Names are there; of the bytes of each file the first half, the last of them torn.
    Torn,
    /// Names are there, bytes are not.
    NamesOnly,
    /// Of the last bytes that were written to each file so many are there, and everything before them.
    TornAt(usize),
}

pub const CUTS: [Cut; 3] = [Cut::Clean, Cut::Torn, Cut::NamesOnly];

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Resize(u64),
}

type Entries = BTreeMap<String, usize>;

/// A file or a folder, whatever its name is.
#[derive(Debug)]
enum Node {
    File { safe: Vec<Change>, waiting: Vec<Change>, length: u64 },
    Folder { safe: Entries, now: Entries },
}

struct Open {
    node: usize,
    at: u64,
    is_appending: bool,
}

/// A disk as it is at one moment.
pub struct Platter {
    root: String,
    /// The first one is the root, which was there before.
    nodes: Vec<Node>,
    open: HashMap<u32, Open>,
}

const ROOT: usize = 0;

impl Platter {
    /// Follows what happens under a folder that is there already.
    pub fn new(root: &Path) -> Platter {
        let root = root.to_str().unwrap().to_owned();
        Platter { root, nodes: vec![folder()], open: HashMap::new() }
    }

    /// Takes one event in.
    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Open { fd, path, is_made, is_emptied, is_appending } => {
                // The handle may have been that of something else.
                self.open.remove(fd);
                let Some(node) = self.find(path).or_else(|| is_made.then(|| self.put(path, file())).flatten()) else {
                    return;
                };
                if *is_emptied {
                    self.change(node, Change::Resize(0));
                }
                self.open.insert(*fd, Open { node, at: 0, is_appending: *is_appending });
            }
            Event::Seek { fd, to } => {
                if let Some(open) = self.open.get_mut(fd) {
                    open.at = *to;
                }
            }
            Event::Write { fd, at, bytes, .. } => self.write(*fd, *at, bytes),
            Event::Resize { path, length } => {
                if let Some(node) = self.find(path) {
                    self.change(node, Change::Resize(*length));
                }
            }
            Event::Sync { path } => {
                if let Some(node) = self.find(path) {
                    self.sync(node);
                }
            }
            Event::Rename { from, to } => {
                if let (Some(node), Some((folder, name))) = (self.remove(from), self.place(to)) {
                    self.entries(folder).insert(name, node);
                }
            }
            Event::Remove { path } => drop(self.remove(path)),
            Event::MakeFolder { path } => drop(self.put(path, folder())),
            Event::Told { .. } => {}
        }
    }

    /// What has this path now.
    fn find(&self, path: &str) -> Option<usize> {
        let rest = Path::new(path).strip_prefix(&self.root).ok()?;
        rest.components().try_fold(ROOT, |node, part| match (&self.nodes[node], part) {
            (Node::Folder { now, .. }, Component::Normal(name)) => now.get(name.to_str()?).copied(),
            _ => None,
        })
    }

    /// The folder that something with this path lies in, and its name there.
    fn place(&self, path: &str) -> Option<(usize, String)> {
        let (folder, name) = path.rsplit_once('/')?;
        Some((self.find(folder)?, name.to_owned()))
    }

    fn entries(&mut self, folder: usize) -> &mut Entries {
        match &mut self.nodes[folder] {
            Node::Folder { now, .. } => now,
            Node::File { .. } => panic!("a file holds no names"),
        }
    }

    fn put(&mut self, path: &str, node: Node) -> Option<usize> {
        let (folder, name) = self.place(path)?;
        self.nodes.push(node);
        let number = self.nodes.len() - 1;
        self.entries(folder).insert(name, number);
        Some(number)
    }

    fn remove(&mut self, path: &str) -> Option<usize> {
        let (folder, name) = self.place(path)?;
        self.entries(folder).remove(&name)
    }

    fn change(&mut self, node: usize, change: Change) {
        let Node::File { waiting, length, .. } = &mut self.nodes[node] else { return };
        *length = match &change {
            Change::Write { at, bytes } => (*length).max(at + bytes.len() as u64),
            Change::Resize(length) => *length,
        };
        waiting.push(change);
    }

    fn write(&mut self, fd: u32, at: Option<u64>, bytes: &[u8]) {
        let Some(open) = self.open.get_mut(&fd) else { return };
        let end = if let Node::File { length, .. } = &self.nodes[open.node] { *length } else { 0 };
        let begin = at.unwrap_or(if open.is_appending { end } else { open.at });
        if at.is_none() {
            open.at = begin + bytes.len() as u64;
        }
        let node = open.node;
        self.change(node, Change::Write { at: begin, bytes: bytes.to_vec() });
    }

    fn sync(&mut self, node: usize) {
        match &mut self.nodes[node] {
            Node::File { safe, waiting, .. } => safe.append(waiting),
            Node::Folder { safe, now } => safe.clone_from(now),
        }
    }

    /// Writes what a power cut leaves now into another folder.
    pub fn leave(&self, cut: Cut, target: &Path) {
        self.leave_folder(ROOT, cut, target);
    }

    fn leave_folder(&self, folder: usize, cut: Cut, target: &Path) {
        let Node::Folder { safe, now } = &self.nodes[folder] else { unreachable!("only folders are entered") };
        let names = if matches!(cut, Cut::Clean | Cut::TornAt(_)) { safe } else { now };
        for (name, node) in names {
            let path = target.join(name);
            match &self.nodes[*node] {
                Node::File { safe, waiting, .. } => write_out(&path, safe, waiting, cut),
                Node::Folder { .. } => {
                    std::fs::create_dir(&path).unwrap();
                    self.leave_folder(*node, cut, &path);
                }
            }
        }
    }
}

fn folder() -> Node {
    Node::Folder { safe: Entries::new(), now: Entries::new() }
}

fn file() -> Node {
    Node::File { safe: Vec::new(), waiting: Vec::new(), length: 0 }
}

fn write_out(path: &Path, safe: &[Change], waiting: &[Change], cut: Cut) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::create(path).unwrap();
    let arrived = match cut {
        Cut::Clean | Cut::NamesOnly => &[],
        Cut::Torn => &waiting[..waiting.len().div_ceil(2)],
        Cut::TornAt(_) => waiting,
    };
    for change in safe {
        apply(&file, change, usize::MAX);
    }
    for (place, change) in arrived.iter().enumerate() {
        let is_last = place + 1 == arrived.len();
        let length = match (cut, change) {
            (Cut::Torn, Change::Write { bytes, .. }) if is_last => bytes.len() / 2,
            (Cut::TornAt(length), _) if is_last => length,
            _ => usize::MAX,
        };
        apply(&file, change, length);
    }
    fn apply(file: &std::fs::File, change: &Change, length: usize) {
        match change {
            Change::Write { at, bytes } => file.write_all_at(&bytes[..length.min(bytes.len())], *at).unwrap(),
            Change::Resize(length) => file.set_len(*length).unwrap(),
        }
    }
}
