//! Checks that no module imports from a module of its crate above it, and that no crate depends on one above it. The
//! orders are written in DESIGN.md only, and read from there. In folders without an order there, no circle of modules may
//! import from each other. An import of an item that the folder's `mod.rs` re-exports counts as an import of the module
//! that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose modules are checked: folders of `src`.
const CRATES: [&str; 5] = ["base", "stores", "codecs", "samples", "engine"];

/// Names in rows, lowest first. Those in one row don't import from each other.
type Rows = Vec<Vec<String>>;

/// Returns the lists of DESIGN.md. Each has the folder below `src` whose modules it orders, such as `samples/order` for
/// those in `src/samples/src/order`. That of `src` orders the crates.
fn orders() -> Vec<(String, Rows)> {
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

/// Returns the folder `src`, which has the crates.
fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Adds the Rust files of a folder and its subfolders to `found`, except tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if matches!(stem, "tests" | "test_gpu" | "testing") || stem.starts_with("tests_") {
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

/// Returns the items that the code of a `mod.rs` re-exports, with the modules that have them.
fn reexports(code: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in code.split(';') {
        let Some((visibility, path)) = statement.split_once("use ") else { continue };
        let visibility = visibility.rsplit(['\n', '}']).next().unwrap().trim();
        if !visibility.starts_with("pub") {
            continue;
        }
        let path = path.trim().trim_start_matches("self::").trim_start_matches("super::");
        let Some((module, items)) = path.split_once("::") else { continue };
        // The last name of each path: what it is called here.
        for item in items.trim_matches(['{', '}', ' ', '\n']).split(',') {
            let name = item.rsplit([':', ' ']).next().unwrap().trim();
            found.insert(name.to_owned(), module.trim().to_owned());
        }
    }
    found
}

/// The modules of a folder.
struct Folder {
    /// For each module, the modules of the folder that it imports from, each with a file that does.
    imports: BTreeMap<String, BTreeMap<String, PathBuf>>,
}

impl Folder {
    /// Reads the files of a folder and its subfolders. The file of the folder itself (`mod.rs`, `lib.rs`) may use all
    /// modules in it.
    fn read(root: &Path, folder: &str) -> Self {
        let parent: Vec<String> = folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let own_file = ["mod.rs", "lib.rs"].map(|name| root.join(folder).join(name));
        let own_code = own_file.iter().find_map(|file| fs::read_to_string(file).ok()).map(|text| code(&text));
        let reexported = own_code.map_or_else(BTreeMap::new, |code| reexports(&code));
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        let with_module = |file: PathBuf| {
            let module = module_of(file.strip_prefix(root).unwrap());
            Some((module.get(parent.len())?.clone(), module, file))
        };
        let files: Vec<_> = files.into_iter().filter_map(with_module).collect();
        let mut imports_of: BTreeMap<_, BTreeMap<_, _>> =
            files.iter().map(|(own, ..)| (own.clone(), BTreeMap::new())).collect();
        for (own, module, file) in files {
            let text = code(&fs::read_to_string(&file).unwrap());
            for name in imports(&text, &module, &parent) {
                let name = if imports_of.contains_key(name) { Some(name) } else { reexported.get(name).map(|s| &**s) };
                let Some(name) = name.filter(|&name| name != own && imports_of.contains_key(name)) else { continue };
                let short = file.strip_prefix(root).unwrap().to_owned();
                imports_of.get_mut(&own).unwrap().insert(name.to_owned(), short);
            }
        }
        Self { imports: imports_of }
    }

    /// Returns all modules that a module imports from, also through others.
    fn below(&self, module: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut open: Vec<&str> = self.imports[module].keys().map(|name| &**name).collect();
        while let Some(name) = open.pop() {
            if found.insert(name) {
                open.extend(self.imports[name].keys().map(|name| &**name));
            }
        }
        found
    }
}

#[test]
fn no_module_imports_from_one_above_it() {
    let orders = orders();
    assert!(orders.iter().any(|(folder, _)| folder == "engine"), "DESIGN.md has no order of the engine's modules");
    let mut wrong = Vec::new();
    for (path, rows) in orders.iter().filter(|(path, _)| path != "src") {
        let (name, folder) = path.split_once('/').unwrap_or((path, ""));
        assert!(CRATES.contains(&name), "DESIGN.md orders the modules of {name}, which isn't a crate");
        let root = src().join(name).join("src");
        let row_of = |name: &str| rows.iter().position(|row| row.iter().any(|other| other == name));
        for (own, imports) in Folder::read(&root, folder).imports {
            let Some(row) = row_of(&own) else {
                wrong.push(format!("{path}: the module {own} isn't in the order"));
                continue;
            };
            for (name, file) in imports {
                if row_of(&name).is_some_and(|other| other >= row) {
                    wrong.push(format!("{path}: {} imports from {name}, which isn't below {own}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "the order of modules (DESIGN.md) is broken:\n{}", wrong.join("\n"));
}

#[test]
fn no_modules_import_from_each_other() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let root = src().join(name).join("src");
        let mut files = Vec::new();
        sources(&root, &mut files);
        let folders: BTreeSet<&Path> =
            files.iter().filter_map(|file| file.parent()?.strip_prefix(&root).ok()).collect();
        for folder in folders {
            let folder = Folder::read(&root, folder.to_str().unwrap());
            for (own, imports) in &folder.imports {
                for (other, file) in imports {
                    if folder.below(other).contains(&**own) {
                        wrong.push(format!("{name}: {} imports from {other}, which needs {own}", file.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "modules that need each other:\n{}", wrong.join("\n"));
}

/// Cargo allows no circle. But it would allow an arrow between crates of one row, or one that skips what lies between.
#[test]
fn no_crate_depends_on_one_above_it() {
    let orders = orders();
    let (_, rows) = orders.iter().find(|(path, _)| path == "src").expect("DESIGN.md has an order of the crates");
    let row_of = |name: &str| rows.iter().position(|row| row.iter().any(|other| other == name));
    let mut crates = 0;
    for entry in fs::read_dir(src()).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let own = folder.file_name().unwrap().to_str().unwrap();
        let row = row_of(own).unwrap_or_else(|| panic!("the crate {own} isn't in the order"));
        for name in dependencies(&manifest) {
            assert!(row_of(name).is_some_and(|other| other < row), "{own} depends on {name}, which isn't below it");
        }
        crates += 1;
    }
    assert_eq!(crates, rows.iter().flatten().count(), "DESIGN.md orders all crates");
}

/// Returns the folders of this project's crates that a manifest names as dependencies, also of tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]") {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            found.extend(name.strip_prefix("dali-zarr-").or((name == "nvcomp-sys").then_some(name)));
        }
    }
    found
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

#[test]
fn reexports_are_found() {
    let text = "mod open;\npub use open::{is_remote, open as open_all};\npub(crate) use self::local::ReadFiles;\nuse zip::Zip;\n";
    let found = reexports(text);
    let found: Vec<_> = found.iter().map(|(item, module)| (item.as_str(), module.as_str())).collect();
    assert_eq!(found, [("ReadFiles", "local"), ("is_remote", "open"), ("open_all", "open")]);
}
