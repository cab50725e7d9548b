//! Circles: modules form a tree, not a knot.
//!
//! Owns: who imports whom, among the modules of one folder.
//! Invariant: a finding names the import that closes a circle; tests may
//! import whatever they like.
//! Never: counts what a module and the folder it stands in say of each other.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::Source;

/// The names from the crate's root to a module.
type Module = Vec<String>;

/// An import, as siblings see it: the folder they stand in, who imports, who is imported.
type Import = (Module, String, String);

pub(super) fn circles(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(Module, &Source)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        if let Some((package, module)) = module_of(&source.path) {
            crates.entry(package).or_default().push((module, source));
        }
    }
    crates.values().flat_map(|modules| circles_of_crate(modules)).collect()
}

/// The package and the module that a file is; `None` for tests and what is not part of a library or program.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let (package, inside) = path.split_once("/src/")?;
    let mut module: Module = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    (!module.iter().any(|name| name == "tests")).then_some((package, module))
}

fn circles_of_crate(modules: &[(Module, &Source)]) -> Vec<Finding> {
    let known: BTreeSet<&[String]> = modules.iter().map(|(module, _)| module.as_slice()).collect();
    let mut imports: BTreeMap<Import, (&Source, usize)> = BTreeMap::new();
    for (module, source) in modules {
        for (at, path) in paths(source) {
            let Some(import) = import(module, &path, &known) else { continue };
            imports.entry(import).or_insert((source, source.line(at)));
        }
    }
    let closes = |(folder, from, to): &Import| {
        let mut open = vec![to.as_str()];
        let mut seen = BTreeSet::new();
        while let Some(name) = open.pop() {
            if name == from {
                return true;
            }
            if seen.insert(name) {
                let next = imports.keys().filter(|(other, by, _)| other == folder && by == name);
                open.extend(next.map(|(_, _, to)| to.as_str()));
            }
        }
        false
    };
    let found = imports.iter().filter(|(import, _)| closes(import)).map(|((_, from, to), (source, line))| {
        Finding::new(
            source,
            *line,
            format!("`{from}` imports `{to}`, which leads back to it: one of the two holds what belongs elsewhere"),
        )
    });
    found.collect()
}

/// What a path means among siblings; `None` if it leads up, down or into the module itself.
fn import(module: &[String], path: &[String], known: &BTreeSet<&[String]>) -> Option<Import> {
    let mut full: Module = if path[0] == "crate" { Vec::new() } else { module.to_vec() };
    let mut rest = &path[1..];
    if path[0] == "super" {
        full.pop();
    }
    while rest.first().is_some_and(|name| name == "super") {
        full.pop();
        rest = &rest[1..];
    }
    full.extend(rest.iter().cloned());
    while !known.contains(full.as_slice()) {
        full.pop()?;
    }
    let shared = module.iter().zip(&full).take_while(|(one, other)| one == other).count();
    let (from, to) = (module.get(shared)?, full.get(shared)?);
    Some((module[..shared].to_vec(), from.clone(), to.clone()))
}

/// Every path that begins with `crate`, `super` or `self`, with where it stands; those in braces one by one.
fn paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let end = source
        .code
        .find("#[cfg(test)]\nmod ")
        .filter(|at| source.code[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{')));
    let code = &source.code[..end.unwrap_or(source.code.len())];
    let mut found = Vec::new();
    for root in ["crate", "super", "self"] {
        for at in source.code_words(root).filter(|at| *at < code.len()) {
            let is_inside = code[..at].ends_with("::");
            let after = &code[at + root.len()..];
            if let Some(rest) = after.strip_prefix("::").filter(|_| !is_inside) {
                let (trees, _) = tree(rest);
                found.extend(trees.into_iter().map(|path| (at, [vec![root.to_owned()], path].concat())));
            }
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c::d}`, and what follows it.
fn tree(text: &str) -> (Vec<Vec<String>>, &str) {
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut all = Vec::new();
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            if let Some(rest) = rest.strip_prefix('}') {
                return (all, rest);
            }
            let (paths, after) = tree(rest);
            if after.len() == rest.len() {
                return (all, after);
            }
            all.extend(paths);
            rest = after
                .strip_prefix(" as ")
                .map_or(after, |renamed| renamed.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'));
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return (vec![Vec::new()], text.strip_prefix('*').unwrap_or(text));
    }
    match rest.strip_prefix("::") {
        Some(below) => {
            let (paths, rest) = tree(below);
            (paths.into_iter().map(|path| [vec![name.to_owned()], path].concat()).collect(), rest)
        }
        None => (vec![vec![name.to_owned()]], rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        circles(&sources).iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn two_that_import_each_other_are_a_circle_however_it_is_written() {
        for (one, other) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b::B;", "\nfn f() { super::a::g() }"),
            ("use crate::{\n    b::{B, C},\n    d,\n};", "use super::a;"),
        ] {
            let found = lines(&[("p/src/a.rs", one), ("p/src/b.rs", other), ("p/src/d.rs", ""), ("p/src/lib.rs", "")]);
            assert_eq!(found.len(), 2, "{one} {other}: {found:?}");
        }
        let three = [("p/src/a.rs", "use crate::b;"), ("p/src/b.rs", "use crate::c;"), ("p/src/c.rs", "use crate::a;")];
        assert_eq!(lines(&three).len(), 3);
    }

    #[test]
    fn a_tree_is_none_and_neither_is_a_folder_with_what_stands_in_it() {
        let tree = [
            ("p/src/lib.rs", "pub mod a; use crate::a::A;"),
            ("p/src/a/mod.rs", "mod b; use self::b::B; use crate::c::C;"),
            ("p/src/a/b.rs", "use super::A; use crate::c::C;"),
            ("p/src/c.rs", "// use crate::a::A;\nfn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            ("q/src/c.rs", "use crate::a::A;"),
            ("q/src/a.rs", "fn f() {}"),
            ("p/src/c/tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(lines(&tree), [""; 0]);
    }
}
