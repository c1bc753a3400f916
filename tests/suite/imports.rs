//! Imports between the directories of a crate form no cycle, so that a reader can start at the
//! bottom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each directory of a crate's sources, the directories that it imports from, each with one
/// importing file.
type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, PathBuf>>;

#[test]
fn no_import_cycle_crosses_directories() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let crates: Vec<_> = members.split('"').map(|member| root.join(member).join("src")).collect();
    let crates: Vec<_> = crates.iter().filter(|sources| sources.join("lib.rs").is_file()).collect();
    assert!(crates.len() >= 9, "{crates:?}");
    for sources in crates {
        let mut imports = Imports::new();
        let mut files = Vec::new();
        list(sources, &mut files);
        for file in &files {
            note_imports(sources, file, &mut imports);
        }
        if let Some(cycle) = cycle_of(&imports) {
            let steps = cycle.iter().zip(cycle.iter().cycle().skip(1));
            let steps: Vec<_> = steps
                .map(|(from, to)| format!("{} imports {}", imports[from][to].display(), to.display()))
                .collect();
            panic!("an import cycle crosses directories:\n{}", steps.join("\n"));
        }
    }
}

#[test]
fn a_cycle_is_found() {
    let edge = |to: &str| (PathBuf::from(to), PathBuf::from("a file"));
    let imports = |edges: &[(&str, &[&str])]| -> Imports {
        edges.iter().map(|(from, to)| (PathBuf::from(from), to.iter().map(|to| edge(to)).collect())).collect()
    };
    assert_eq!(cycle_of(&imports(&[("a", &["b", "c"]), ("b", &["c"])])), None);
    let cycle = cycle_of(&imports(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])])).unwrap();
    assert_eq!(cycle, [PathBuf::from("b"), PathBuf::from("c")]);
}

/// Lists the source files below a directory, except those that contain only tests.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// Adds the directories that a file imports from. A directory and its subdirectories count as one:
/// a module and its parts.
fn note_imports(sources: &Path, file: &Path, imports: &mut Imports) {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<_> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let own = module_of(sources, file);
    let from = file.parent().unwrap();
    for path in paths_in(&code.join("\n")) {
        let mut module = own.clone();
        let mut names = path.iter().map(String::as_str).peekable();
        match names.next() {
            Some("crate") => module.clear(),
            _ => drop(module.pop()),
        }
        while names.next_if_eq(&"super").is_some() {
            module.pop();
        }
        let to = directory_of(sources, module.iter().map(String::as_str).chain(names));
        if !to.starts_with(from) && !from.starts_with(&to) {
            imports.entry(from.to_owned()).or_default().entry(to).or_insert_with(|| file.to_owned());
        }
    }
}

fn module_of(sources: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(sources).unwrap().with_extension("");
    let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| !matches!(name.as_str(), "mod" | "lib" | "main")).collect()
}

/// Returns the directory of the innermost module in a path. The rest of the path names items in
/// that module.
fn directory_of<'a>(sources: &Path, names: impl Iterator<Item = &'a str>) -> PathBuf {
    let (mut below, mut directory) = (sources.to_owned(), sources.to_owned());
    for name in names {
        if below.join(name).join("mod.rs").is_file() {
            directory = below.join(name);
        } else if below.join(format!("{name}.rs")).is_file() {
            directory = below.clone();
        } else {
            break;
        }
        below.push(name);
    }
    directory
}

/// Returns the paths in a piece of code that start with `crate` or `super`, with each name of a
/// grouped `use`.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let words =
        |piece: &str| -> Vec<String> { piece.split("::").map(|name| name.trim().to_owned()).collect() };
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|it| it.is_alphanumeric() || it == '_' || it == ':') {
            continue;
        }
        let rest = &code[at..];
        let end =
            rest.find(|it: char| !(it.is_alphanumeric() || it == '_' || it == ':')).unwrap_or(rest.len());
        let prefix = words(rest[..end].trim_end_matches(':'));
        match rest[end..].strip_prefix('{') {
            Some(group) if rest[..end].ends_with("::") => {
                for name in names_in(group) {
                    paths.push(prefix.iter().cloned().chain(words(&name)).collect());
                }
            }
            _ => paths.push(prefix),
        }
    }
    paths
}

/// Returns the paths within the braces of a `use`, up to the closing one.
fn names_in(group: &str) -> Vec<String> {
    let (mut names, mut prefixes, mut name) = (Vec::new(), vec![String::new()], String::new());
    for letter in group.chars() {
        match letter {
            '{' => {
                let prefix = prefixes.last().cloned().unwrap_or_default() + name.trim();
                prefixes.push(prefix);
                name.clear();
            }
            ',' | '}' => {
                if !name.trim().is_empty() {
                    names.push(prefixes.last().cloned().unwrap_or_default() + name.trim());
                }
                name.clear();
                if letter == '}' {
                    prefixes.pop();
                    if prefixes.is_empty() {
                        break;
                    }
                }
            }
            _ => name.push(letter),
        }
    }
    names
}

/// Returns the directories of a cycle, in order: each imports from the next, and the last from the
/// first.
fn cycle_of(imports: &Imports) -> Option<Vec<PathBuf>> {
    fn walk<'a>(
        directory: &'a Path,
        imports: &'a Imports,
        path: &mut Vec<&'a Path>,
        done: &mut BTreeSet<&'a Path>,
    ) -> Option<Vec<PathBuf>> {
        if let Some(start) = path.iter().position(|it| *it == directory) {
            return Some(path[start..].iter().map(|it| it.to_path_buf()).collect());
        }
        if !done.insert(directory) {
            return None;
        }
        path.push(directory);
        let found =
            imports.get(directory).into_iter().flatten().find_map(|(to, _)| walk(to, imports, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|directory| walk(directory, imports, &mut Vec::new(), &mut done))
}
