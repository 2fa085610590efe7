//! Checks that no module imports from a module above it. The order is written in DESIGN.md only, and read from there.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the lists of DESIGN.md. Each has the folder whose modules it orders (empty: the crate), and rows of modules,
/// lowest first. Modules in one row don't import from each other.
fn orders() -> Vec<(String, Vec<Vec<String>>)> {
    let text = include_str!("../../DESIGN.md");
    let mut orders = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(folder) = line.strip_prefix("```module-order") else { continue };
        let rows = lines.by_ref().take_while(|line| *line != "```");
        let names = |row: &str| row.split_whitespace().map(str::to_owned).collect();
        orders.push((folder.trim().to_owned(), rows.map(names).collect()));
    }
    orders
}

/// Adds the Rust files of a folder and its subfolders to `found`, except tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if stem == "tests" || stem.starts_with("tests_") || stem == "test_gpu" {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns the code of a file, without comments and without modules that are compiled for tests only.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{')) {
            while lines.next().is_some_and(|line| line != "}") {}
            continue;
        }
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Returns the names after each `prefix` in `code`: one name, or all names in a list in braces.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let name = |text: &'a str| text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        let Some(list) = rest.strip_prefix('{') else {
            names.push(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (i, c) in list.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    names.push(name(&list[i..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// Returns the path of a file's module inside the crate.
fn module_of(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    let last = path.pop().unwrap();
    if !matches!(last.as_str(), "mod.rs" | "lib.rs") {
        path.push(last.trim_end_matches(".rs").to_owned());
    }
    path
}

/// Returns the modules of the folder `parent` (a path inside the crate) that `code`, the code of `module`, names.
fn imports<'a>(code: &'a str, module: &[String], parent: &[String]) -> Vec<&'a str> {
    let joined: String = parent.iter().map(|name| format!("{name}::")).collect();
    let mut names = names_after(code, &format!("crate::{joined}"));
    if let Some(up) = module.len().checked_sub(parent.len()).filter(|&up| up > 0) {
        names.extend(names_after(code, &"super::".repeat(up)));
    }
    names
}

#[test]
fn no_module_imports_from_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let orders = orders();
    assert!(orders.iter().any(|(folder, _)| folder.is_empty()), "DESIGN.md has no order of the crate's modules");
    let mut wrong = Vec::new();
    for (folder, rows) in &orders {
        let parent: Vec<String> = folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let row_of = |name: &str| rows.iter().position(|row| row.iter().any(|other| other == name));
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        for file in files {
            let short = file.strip_prefix(&root).unwrap();
            let module = module_of(short);
            // The file of the folder itself (`mod.rs`, `lib.rs`) may use all modules in it.
            let Some(own) = module.get(parent.len()) else { continue };
            let Some(row) = row_of(own) else {
                wrong.push(format!("{}: the module {own} isn't in the order", short.display()));
                continue;
            };
            let text = code(&fs::read_to_string(&file).unwrap());
            for name in imports(&text, &module, &parent) {
                if name != own && row_of(name).is_some_and(|other| other >= row) {
                    wrong.push(format!("{} imports from {name}, which isn't below {own}", short.display()));
                }
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "the order of modules (DESIGN.md) is broken:\n{}", wrong.join("\n"));
}

#[test]
fn imports_are_found() {
    let text = "use crate::store::{self, Store};\nuse super::super::gpu::Lane;\n// crate::reader\nfn f() { crate::io::g() }\n\
        use crate::{cache, plan::{ChunkId, Planner}, spec};\n#[cfg(test)]\nmod tests {\n    use crate::labels;\n}\n";
    let module = ["order".to_owned(), "windows".to_owned()];
    let mut found = imports(&code(text), &module, &[]).into_iter().map(str::to_owned).collect::<Vec<_>>();
    found.retain(|name| name != "self");
    found.sort();
    assert_eq!(found, ["cache", "gpu", "io", "plan", "spec", "store"]);
    assert_eq!(names_after("use super::head;\nuse crate::order::head::x;", "crate::order::"), ["head"]);
    assert_eq!(module_of(Path::new("gpu/decoding/mod.rs")), ["gpu", "decoding"]);
}
