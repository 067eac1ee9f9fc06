//! Checks the "deliberately absent" column of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Dependencies of a crate as its manifest lists them, without those for tests.
fn dependencies(krate: &str) -> Vec<String> {
    listed(&root().join(format!("crates/{krate}")), "dependencies")
}

/// The names in a section of the manifest in a directory; none if it has no such section.
fn listed(directory: &Path, section: &str) -> Vec<String> {
    let text = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
    let section = text.split("\n[").find_map(|s| s.strip_prefix(section)?.strip_prefix(']'));
    section
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|l| l.split(['.', ' ', '=']).next())
        .filter(|n| !n.is_empty() && !n.starts_with('#'))
        .map(str::to_string)
        .collect()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn the_planner_knows_no_engine() {
    let allowed = ["serde", "serde_json", "sha2", "thiserror", "smallvec"];
    for d in dependencies("planner") {
        assert!(allowed.contains(&d.as_str()), "planner depends on {d}");
    }
    let mut files = vec![];
    sources(&root().join("crates/planner/src"), &mut files);
    for f in files {
        let text = fs::read_to_string(&f).unwrap();
        for word in ["std::fs", "std::net", "std::thread", "SystemTime", "Instant::now"] {
            assert!(!text.contains(word), "{} uses {word}", f.display());
        }
    }
}

#[test]
fn kernels_know_numbers_alone() {
    let allowed = ["tessera-planner", "faer", "libm", "num-traits", "smallvec", "thiserror"];
    for d in dependencies("kernels") {
        assert!(allowed.contains(&d.as_str()), "kernels depends on {d}");
    }
}

/// A row for each crate: its name, the crates of this workspace that its manifest may list, and packages that it must
/// not list.
const ROWS: [(&str, &[&str], &[&str]); 11] = [
    ("planner", &[], &["tokio", "datafusion", "arrow"]),
    ("frontend", &["planner"], &["tokio", "object_store", "datafusion", "arrow"]),
    ("kernels", &["planner"], &["tokio", "datafusion", "arrow"]),
    ("storage", &["planner", "kernels"], &["datafusion", "arrow", "sqlparser", "axum"]),
    (
        "exec",
        &["planner", "kernels", "storage"],
        &["sqlparser", "datafusion", "parquet", "object_store", "axum", "clap"],
    ),
    (
        "cells",
        &["planner", "frontend", "storage", "exec"],
        &["reqwest", "tonic", "axum", "clap", "figment"],
    ),
    ("cluster", &["planner", "storage", "exec"], &["sqlparser", "datafusion", "axum", "reqwest"]),
    (
        "engine",
        &["planner", "frontend", "storage", "exec", "cells", "cluster"],
        &[
            "datafusion",
            "axum",
            "hyper",
            "hyper-util",
            "tower",
            "rustls",
            "tokio-rustls",
            "reqwest",
            "clap",
        ],
    ),
    (
        "server",
        &["engine", "frontend", "storage", "exec", "cluster"],
        &["datafusion", "parquet", "object_store", "figment"],
    ),
    ("repl", &["engine", "server"], &["datafusion", "sqlparser", "axum", "reqwest"]),
    (
        "python",
        &["planner", "frontend", "cells", "engine", "server"],
        &["datafusion", "sqlparser", "axum", "reqwest", "object_store"],
    ),
];

#[test]
fn storage_knows_no_plan() {
    let codecs = [
        "blosc-src",
        "bzip2",
        "crc32c",
        "crc32fast",
        "flate2",
        "hayro-jpeg2000",
        "libdeflater",
        "zarrs",
        "zstd",
    ];
    let network = ["object_store", "reqwest", "tokio", "url"];
    // Without Arrow: kerchunk's references are in tables.
    let tables = ["parquet"];
    let allowed = [
        "tessera-kernels",
        "tessera-planner",
        "async-trait",
        "bytes",
        "futures",
        "glob",
        "half",
        "rustix",
        "serde",
        "serde_json",
        "smallvec",
        "thiserror",
        "tracing",
        "uuid",
    ];
    for d in dependencies("storage") {
        let known = allowed.iter().chain(&codecs).chain(&network).chain(&tables).any(|a| *a == d);
        assert!(known, "storage depends on {d}");
    }
    // Dependencies of storage are not repeated in exec.
    for d in dependencies("exec") {
        assert!(!codecs.contains(&d.as_str()) || d == "crc32fast", "exec depends on {d}");
    }
}

#[test]
fn each_crate_keeps_to_its_row_of_the_architecture() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let described = page.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next());
    let described: BTreeSet<&str> = described.collect();
    let checked: BTreeSet<&str> = ROWS.iter().map(|row| row.0).collect();
    assert_eq!(described, checked, "the rows of ARCHITECTURE.md and of this test");
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let crates: BTreeSet<String> =
        crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(crates.iter().eq(checked.iter()), "{crates:?} have rows {checked:?}");
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for (krate, ours, absent) in ROWS {
        for d in dependencies(krate) {
            let is_ours = d.strip_prefix("tessera-").is_none_or(|name| ours.contains(&name));
            assert!(is_ours && !absent.contains(&d.as_str()), "{krate} depends on {d}");
        }
        for name in absent {
            assert!(
                lock.contains(&format!("\nname = \"{name}\"\n")),
                "no package is called {name}"
            );
        }
    }
}

/// The public functions, fields and re-exports of a file that name DataFusion or something that the file imports from
/// it.
fn shows_datafusion(text: &str) -> Vec<String> {
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.map(str::to_string).collect()
    };
    let imports = text.split("\nuse datafusion").skip(1).filter_map(|rest| rest.split(';').next());
    let imported = imports.flat_map(words).filter(|name| name.starts_with(char::is_uppercase));
    let names: BTreeSet<String> = imported.chain(["datafusion".to_string()]).collect();
    let of = |(at, _): (usize, &str)| {
        let item = text[at..].strip_prefix("pub ")?;
        let end = match item.split(' ').next()? {
            "struct" | "enum" | "trait" | "mod" => return None,
            "fn" | "async" | "use" | "type" | "const" => item.find(['{', ';']),
            _ => item.find('\n'),
        };
        Some(&item[..end?])
    };
    let public = text.match_indices("pub ").filter_map(of);
    public.filter(|item| !words(item).is_disjoint(&names)).map(str::to_string).collect()
}

#[test]
fn datafusion_lives_in_cells() {
    for (krate, ..) in ROWS {
        let has = dependencies(krate).iter().any(|d| d.starts_with("datafusion"));
        assert_eq!(has, krate == "cells", "{krate}");
    }
    // Nobody gets hold of it through cells.
    let mut files = vec![];
    sources(&root().join("crates/cells/src"), &mut files);
    for file in files {
        let shown = shows_datafusion(&fs::read_to_string(&file).unwrap());
        assert!(shown.is_empty(), "{}: {shown:?}", file.display());
    }
    // The check can fail.
    let file = "\nuse datafusion::sql::{A, b};\npub struct S(A);\nimpl S {\n    pub fn f(x: &A) -> u8 {}\n";
    assert_eq!(shows_datafusion(file), ["fn f(x: &A) -> u8 "]);
    assert_eq!(shows_datafusion("pub use datafusion::sql;"), ["use datafusion::sql"]);
}

#[test]
fn one_version_of_each() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for line in lock.lines() {
        if let Some(name) = line.strip_prefix("name = ") {
            *versions.entry(name.trim_matches('"')).or_default() += 1;
        }
    }
    for (name, n) in versions {
        let single = name.starts_with("arrow")
            || name.starts_with("datafusion")
            || ["sqlparser", "object_store", "tonic", "prost", "zarrs"].contains(&name);
        assert!(!single || n == 1, "{n} versions of {name}");
    }
}

/// The licences that deny.toml allows.
fn allowed_licences() -> Vec<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let (_, list) = text.split_once("\nallow = [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_string).collect()
}

/// True if a package may be used under allowed licences alone.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let parsed = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX);
    parsed.is_ok_and(|e| e.evaluate(|need| allowed.contains(&need.to_string())))
}

/// The same check as `cargo deny check licenses sources`. Building that program would take minutes of each `.ci/run`.
#[test]
fn licences_and_sources_of_dependencies_are_allowed() {
    let allowed = allowed_licences();
    assert!(is_allowed("(MIT OR GPL-3.0-only) AND Apache-2.0 WITH LLVM-exception", &allowed));
    assert!(!is_allowed("MIT AND GPL-3.0-only", &allowed) && !is_allowed("", &allowed));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 300, "{} packages", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_allowed(licence, &allowed), "{name}: licence `{licence}`");
        let source = package["source"].as_str();
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert!(source.is_none_or(|source| source == registry), "{name}: from {source:?}");
    }
}

/// The text of a file, with that of the files that it names by `#[path]`.
fn with_included(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let paths = text.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut files = Vec::new();
    for path in paths.map(|p| file.parent().unwrap().join(p)).filter(|p| p.is_file()) {
        match path.ends_with("mod.rs") {
            true => sources(path.parent().unwrap(), &mut files),
            false => files.push(path),
        }
    }
    let included = files.iter().filter_map(|path| fs::read_to_string(path).ok());
    included.collect::<String>() + &text
}

#[test]
fn dependencies_are_used() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for directory in crates.chain([root()]) {
        let krate = directory.file_name().unwrap().to_string_lossy().to_string();
        let mut text = String::new();
        for (section, folders) in
            [("dependencies", &["src"][..]), ("dev-dependencies", &["tests", "benches"])]
        {
            let mut files = vec![];
            for folder in folders.iter().map(|f| directory.join(f)).filter(|f| f.is_dir()) {
                sources(&folder, &mut files);
            }
            text.extend(files.iter().map(|f| with_included(f)));
            for name in listed(&directory, section) {
                let word = name.replace('-', "_");
                let is_named =
                    text.contains(&format!("{word}::")) || text.contains(&format!("use {word}"));
                assert!(is_named, "{krate} does not use {name}, which its manifest lists");
            }
        }
    }
}

/// The modules and functions that a page names as `crate::path`, which does not exist in that crate.
fn missing(page: &str) -> Vec<String> {
    let named = page.split('`').skip(1).step_by(2).filter(|code| code.contains("::"));
    let exists = |name: &str| {
        let (krate, path) = name.split_once("::").unwrap();
        let src = root().join(format!("crates/{krate}/src"));
        let module = src.join(path.replace("::", "/"));
        if module.is_dir() || module.with_extension("rs").is_file() {
            return true;
        }
        let (inside, last) = path.rsplit_once("::").unwrap_or(("", path));
        let below = src.join(inside.replace("::", "/"));
        let mut files = vec![below.with_extension("rs"), src.join("lib.rs")];
        if below.is_dir() {
            sources(&below, &mut files);
        }
        let function = [format!("fn {last}("), format!("fn {last}<")];
        files
            .iter()
            .filter_map(|f| fs::read_to_string(f).ok())
            .any(|text| function.iter().any(|f| text.contains(f)))
    };
    named.filter(|name| !exists(name)).map(str::to_string).collect()
}

#[test]
fn the_life_of_a_query_names_existing_items() {
    let page = fs::read_to_string(root().join("docs/life-of-a-query.md")).unwrap();
    assert_eq!(missing(&page), Vec::<String>::new());
    assert!(page.matches("::").count() > 10, "the page names modules and functions");
    // The check can fail.
    assert_eq!(missing("`frontend::parse`, `frontend::no_such`, `no::such`").len(), 2);
}

/// A newcomer follows a query from text to answer in at most 25 files.
#[test]
fn the_life_of_a_query_opens_few_files() {
    let page = fs::read_to_string(root().join("docs/life-of-a-query.md")).unwrap();
    let (_, files) = page.split_once("\n## The files to open\n").unwrap();
    let queries: Vec<&str> = files.split("\n`SELECT ").skip(1).collect();
    assert_eq!(queries.len(), 2);
    for query in queries {
        // One function of each file. What is left of the query ends with a backtick.
        let code = query.split('`').skip(2).step_by(2);
        let named = code.filter(|code| code.contains("::")).count();
        assert!((10..=25).contains(&named), "{named} files: {query}");
    }
}

/// The tests in backticks in the rows of a page that no source defines.
fn unknown_tests(page: &str) -> Vec<String> {
    let mut files = Vec::new();
    for dir in ["crates", "tests"] {
        sources(&root().join(dir), &mut files);
    }
    let all: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    names.filter(|name| !all.contains(&format!("fn {name}("))).map(str::to_owned).collect()
}

#[test]
fn rows_of_the_seeds_name_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/seeds.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    assert_eq!(rows.count(), 29);
    assert_eq!(unknown_tests(&page), Vec::<String>::new());
    // The check can fail.
    assert_eq!(unknown_tests("| 30 | `no_such_test` |"), ["no_such_test"]);
}

/// Links of a page that lead to no file of the repository.
fn dead_links(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = links.filter(|link| !link.contains("://") && !link.starts_with('#'));
    let path = |link: &str| page.parent().unwrap().join(link.split('#').next().unwrap());
    files.filter(|link| !path(link).exists()).map(str::to_string).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
            .map(|page| root().join(page))
            .into();
    for dir in ["docs", "docs/decisions", "benches", "benches/results"] {
        let entries = fs::read_dir(root().join(dir)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    for page in pages {
        let dead = dead_links(&page);
        assert!(dead.is_empty(), "{}: {dead:?}", page.display());
    }
    // The test can fail.
    let page = tempfile::NamedTempFile::new().unwrap();
    fs::write(page.path(), "[a](nowhere.md#x) and [b](https://example.invalid)").unwrap();
    assert_eq!(dead_links(page.path()), ["nowhere.md#x"]);
}

#[test]
fn files_stay_below_600_lines() {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    assert!(files.len() > 400, "{}", files.len());
    for file in files {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 600, "{} has {lines} lines", file.display());
    }
}
