//! Import cycles among the files of a module.
//!
//! A file imports the files that define what it names, by whichever path: where a parent re-exports X, `use super::X` is an
//! import of the file that defines X. No imports are `mod child;`, a path that ends with a module, and `pub use child::X` in a
//! file that says X nowhere else. So a parent may hand on what its children define, and a child may use what its parent defines;
//! but a child that names what its parent defines, while the parent uses what the child defines, is a cycle of two.

use std::collections::{BTreeMap, BTreeSet};

use super::{NamedPath, Source, is_test_file, top_module};

/// Files by their paths, each with a name that is imported from it.
type Imports<'a> = BTreeMap<&'a str, String>;

/// The sources of the names that files use.
struct Files<'a> {
    /// The file of each module.
    modules: BTreeMap<Vec<String>, &'a Source>,
    /// What each file names by a `use`, as a path from the root of its crate.
    names: BTreeMap<&'a str, BTreeMap<String, Vec<String>>>,
}

/// The imports that are part of a cycle.
pub(crate) fn import_cycles(sources: &[Source]) -> Vec<String> {
    let files = Files::new(sources);
    let graph = files.modules.values().map(|source| (source.path.as_str(), files.imports(source)));
    let graph: BTreeMap<&str, Imports<'_>> = graph.collect();
    let mut failures = Vec::new();
    for source in files.modules.values() {
        let from = source.path.as_str();
        for (to, name) in graph.get(from).into_iter().flatten() {
            if let Some(way) = way(&graph, to, from) {
                failures.push(format!("{from}: imports `{name}` in a cycle: {}", way.join(" -> ")));
            }
        }
    }
    failures
}

/// The shortest path along imports.
fn way<'a>(graph: &BTreeMap<&'a str, Imports<'a>>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let (mut ways, mut seen) = (vec![vec![from]], BTreeSet::from([from]));
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = *way.last()?;
            if last == to {
                return Some(way);
            }
            let next = graph.get(last).into_iter().flat_map(|imports| imports.keys().copied());
            longer.extend(
                next.filter(|next| seen.insert(*next)).map(|next| [way.as_slice(), &[next]].concat()),
            );
        }
        ways = longer;
    }
    None
}

impl<'a> Files<'a> {
    fn new(sources: &'a [Source]) -> Self {
        let sources = sources.iter().filter(|source| !is_test_file(source));
        let modules = sources.map(|source| (source.module(0), source)).collect();
        let mut this = Self { modules, names: BTreeMap::new() };
        for source in this.modules.values() {
            let paths = source.paths().into_iter().filter(|path| !source.is_test(path.at));
            let names = paths.filter_map(|path| Some((path.name.clone()?, this.resolved(source, &path)?)));
            this.names.insert(source.path.as_str(), names.collect());
        }
        this
    }

    /// The path from the root of the crate, also for one that begins with a child of its module.
    fn resolved(&self, source: &Source, path: &NamedPath) -> Option<Vec<String>> {
        source.resolved(path).or_else(|| {
            let mut full = source.module(path.at);
            let depth = full.len() + 1;
            full.extend(path.segments.iter().cloned());
            self.modules.contains_key(full.get(..depth)?).then_some(full)
        })
    }

    /// The file that defines what a path names. `None` for a module, and what another crate defines.
    fn home(&self, path: &[String]) -> Option<&'a Source> {
        let file = |len| Some((*self.modules.get(path.get(..len)?)?, path.get(len..)?));
        let (file, rest) = (1..=path.len()).rev().find_map(file)?;
        let (name, rest) = rest.split_first()?;
        match self.names.get(file.path.as_str()).and_then(|names| names.get(name)) {
            Some(from) if from.as_slice() != path => self.home(&[from.as_slice(), rest].concat()),
            _ => Some(file),
        }
    }

    /// The other files of the same module whose definitions this one uses.
    fn imports(&self, source: &Source) -> Imports<'a> {
        let mut imports = Imports::new();
        for path in source.paths() {
            let is_only_handed_on =
                path.is_handed_on && path.name.as_ref().is_none_or(|name| !source.says(name));
            if source.is_test(path.at) || is_only_handed_on {
                continue;
            }
            // The first segment may be a module that is imported here.
            let first = path.segments.first().filter(|_| path.name.is_none());
            let known = first.and_then(|first| self.names.get(source.path.as_str())?.get(first));
            let full = match (known, path.segments.get(1..)) {
                (Some(known), Some(rest)) => Some([known.as_slice(), rest].concat()),
                _ => self.resolved(source, &path),
            };
            let home = full.and_then(|full| self.home(&full));
            let home = home.filter(|home| home.path != source.path && top_module(home) == top_module(source));
            if let Some(home) = home {
                imports.entry(home.path.as_str()).or_insert_with(|| path.segments.join("::"));
            }
        }
        imports
    }
}
