//! Reach: every file of Rust is a target, or a `mod` names it.
//!
//! Owns: following `mod` declarations from the targets of each package.
//! Invariant: a file is reached as rustc would reach it, `#[path]` included.
//! Never: evaluates `cfg`; a file behind a feature is reached.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{Source, words};

pub(super) fn unreached(sources: &[Source]) -> Vec<Finding> {
    let rust: BTreeMap<&str, &Source> =
        sources.iter().filter(|source| source.is_rust()).map(|source| (source.path.as_str(), source)).collect();
    let mut open = targets(sources);
    let mut reached = BTreeSet::new();
    while let Some((path, is_root)) = open.pop() {
        let Some(source) = rust.get(path.as_str()) else {
            continue;
        };
        if reached.insert(path) {
            let named = declared(source, is_root);
            open.extend(named.into_iter().map(|path| (path, false)));
        }
    }
    rust.values()
        .filter(|source| !reached.contains(&source.path))
        .map(|source| Finding::new(source, 1, "no `mod` reaches this file"))
        .collect()
}

/// The roots cargo finds by itself, and those a manifest names.
fn targets(sources: &[Source]) -> Vec<(String, bool)> {
    let manifests = sources.iter().filter(|s| s.path.ends_with("Cargo.toml"));
    let mut roots = Vec::new();
    for manifest in manifests {
        let folder = folder(&manifest.path);
        let inside = |source: &&Source| {
            let within = source.path.strip_prefix(folder.as_str());
            source.is_rust() && within.is_some_and(is_target)
        };
        roots.extend(sources.iter().filter(inside).map(|s| s.path.clone()));
        let named = manifest.text.lines().filter_map(|line| {
            let value = line.trim().strip_prefix("path")?.trim_start();
            value.strip_prefix('=')?.trim().strip_prefix('"')?.strip_suffix('"')
        });
        roots.extend(named.map(|path| normal(&format!("{folder}{path}"))));
    }
    roots.into_iter().map(|path| (path, true)).collect()
}

fn is_target(path: &str) -> bool {
    matches!(
        path.split('/').collect::<Vec<_>>()[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    )
}

/// Every place where a module declared in this file may live.
fn declared(source: &Source, is_root: bool) -> Vec<String> {
    let here = folder(&source.path);
    let own = if is_root || source.stem() == "mod" { here.clone() } else { format!("{here}{}/", source.stem()) };
    let mut files = Vec::new();
    for at in source.code_words("mod") {
        let rest = source.code[at + "mod".len()..].trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        if name.is_empty() || !after.trim_start().starts_with(';') {
            continue;
        }
        if let Some(path) = path_attribute(source, at) {
            files.push(normal(&format!("{here}{path}")));
        }
        let base = format!("{own}{}", enclosing(source, at));
        files.push(format!("{base}{name}.rs"));
        files.push(format!("{base}{name}/mod.rs"));
    }
    files
}

/// The inline modules around an offset, as folders.
fn enclosing(source: &Source, offset: usize) -> String {
    let around = |at: usize| {
        let body = source.braces_after(at)?;
        let head = source.code[at + "mod".len()..body.start].trim();
        body.contains(&offset).then(|| format!("{head}/"))
    };
    source.code_words("mod").filter_map(around).collect()
}

/// The value of `#[path = "…"]` between the item before and this `mod`.
fn path_attribute(source: &Source, at: usize) -> Option<&str> {
    let start = source.code[..at].rfind([';', '}', '{']).map_or(0, |at| at + 1);
    let attribute = words(&source.code[start..at], "path").last()? + start;
    let open = attribute + source.text[attribute..at].find('"')? + 1;
    let close = open + source.text[open..at].find('"')?;
    Some(&source.text[open..close])
}

fn folder(path: &str) -> String {
    path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"))
}

/// Without `.` and `..`.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        unreached(&sources).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_file_nobody_names_is_found_and_so_is_what_only_it_names() {
        let files = [
            ("a/Cargo.toml", ""),
            ("a/src/lib.rs", "mod used;\n// mod lost;\n"),
            ("a/src/used.rs", "pub(crate) mod deep;"),
            ("a/src/used/deep.rs", ""),
            ("a/src/lost.rs", "mod child;"),
            ("a/src/lost/child.rs", ""),
            ("a/src/deep.rs", ""),
        ];
        assert_eq!(lost(&files), ["a/src/deep.rs", "a/src/lost.rs", "a/src/lost/child.rs"]);
    }

    #[test]
    fn targets_are_reached_by_themselves_and_their_modules_lie_beside_them() {
        let files = [
            ("a/Cargo.toml", "[[bin]]\npath = \"odd/start.rs\"\n"),
            ("a/build.rs", ""),
            ("a/src/main.rs", ""),
            ("a/src/bin/b.rs", ""),
            ("a/tests/crash.rs", "mod world;"),
            ("a/tests/world/mod.rs", "mod sink;"),
            ("a/tests/world/sink.rs", ""),
            ("a/tests/sim/main.rs", "mod seed;"),
            ("a/tests/sim/seed.rs", ""),
            ("a/odd/start.rs", ""),
            ("a/tests/world/lost.rs", ""),
        ];
        assert_eq!(lost(&files), ["a/tests/world/lost.rs"]);
    }

    #[test]
    fn path_attributes_and_inline_modules_are_followed() {
        let lib = "#[path = \"../other/x.rs\"]\nmod x;\nmod outer {\n    mod inner;\n}\nmod y;\n";
        let files = [
            ("a/Cargo.toml", ""),
            ("a/src/lib.rs", lib),
            ("a/other/x.rs", ""),
            ("a/src/outer/inner.rs", ""),
            ("a/src/y.rs", ""),
            ("a/src/inner.rs", ""),
        ];
        assert_eq!(lost(&files), ["a/src/inner.rs"]);
    }

    #[test]
    fn a_file_outside_of_any_package_is_lost() {
        assert_eq!(lost(&[("loose.rs", "")]), ["loose.rs"]);
    }
}
