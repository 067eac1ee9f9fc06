//! Runs the tests of the Python package: `python/tests` with pytest, in a virtual environment of its own.
//!
//! The environment is in `target/tmp` and is made of `python/tests/requirements.txt` from PyPI; it is made again when
//! that file changes. `TESSERA_PYTHON` names another interpreter than `python3`. Without Python 3.11 the test reports
//! it and passes; with `CI=true` it fails.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// An interpreter of at least 3.11 that can make virtual environments.
fn interpreter() -> Result<PathBuf, String> {
    let name = env::var("TESSERA_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = "import sys, venv, ensurepip; assert sys.version_info >= (3, 11), sys.version; print(sys.executable)";
    let asked = Command::new(&name).args(["-c", probe]).output();
    match asked {
        Ok(out) if out.status.success() => {
            Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
        }
        Ok(out) => {
            let told = String::from_utf8_lossy(&out.stderr);
            Err(format!("{name}: {}", told.trim().lines().last().unwrap_or("fails")))
        }
        Err(e) => Err(format!("{name}: {e}")),
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(e) => Err(format!("{command:?}: {e}")),
    }
}

/// The interpreter of the environment, which is made unless it exists.
fn environment(python: &Path) -> Result<PathBuf, String> {
    let requirements = root().join("python/tests/requirements.txt");
    let mut hasher = DefaultHasher::new();
    fs::read(&requirements).map_err(|e| format!("{requirements:?}: {e}"))?.hash(&mut hasher);
    python.hash(&mut hasher);
    let name = format!("python-{:016x}", hasher.finish());
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (inside, complete) = (home.join("bin/python"), home.join("complete"));
    if !complete.exists() {
        run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&home))?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(Command::new(&inside).args(install).arg(&requirements))?;
        fs::write(&complete, "").map_err(|e| format!("{complete:?}: {e}"))?;
    }
    Ok(inside)
}

/// A directory with the package: its sources, and the module that cargo built.
fn site() -> Result<PathBuf, String> {
    let deps = env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let built = [deps.join("../libtessera_python.so"), deps.join("libtessera_python.so")];
    let library = built.iter().find(|path| path.exists());
    let library = library.ok_or_else(|| format!("cargo built no module: {built:?}"))?;
    let site = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("site-{}", std::process::id()));
    let package = site.join("tessera_sql");
    let failed = |e: std::io::Error| format!("{package:?}: {e}");
    fs::create_dir_all(&package).map_err(failed)?;
    let link = |from: &Path, name: &Path| std::os::unix::fs::symlink(from, package.join(name));
    for entry in fs::read_dir(root().join("python/tessera_sql")).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap();
        // A native module that was built or linked there is not the one under test.
        if name != "__pycache__" && path.extension().is_none_or(|e| e != "so") {
            link(&path, Path::new(name)).map_err(failed)?;
        }
    }
    let library = library.canonicalize().map_err(failed)?;
    link(&library, Path::new("_native.abi3.so")).map_err(failed)?;
    // xarray finds its engines in the metadata of installed packages.
    let metadata = site.join("tessera_sql-0.dist-info");
    fs::create_dir_all(&metadata).map_err(failed)?;
    fs::write(metadata.join("METADATA"), "Metadata-Version: 2.1\nName: tessera-sql\nVersion: 0\n")
        .map_err(failed)?;
    fs::write(metadata.join("entry_points.txt"), entry_points()?).map_err(failed)?;
    Ok(site)
}

/// The program `tessera`, for the tests with a server. `cargo test --workspace` builds it.
fn binary() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().join("../tessera")
}

/// The entry points of `pyproject.toml`, in the form of an installed package.
fn entry_points() -> Result<String, String> {
    let text = fs::read_to_string(root().join("pyproject.toml")).map_err(|e| e.to_string())?;
    let (_, rest) =
        text.split_once("[project.entry-points.\"").ok_or("pyproject.toml has no entry points")?;
    let (group, rest) = rest.split_once("\"]\n").ok_or("pyproject.toml: no group")?;
    let lines = rest.lines().take_while(|line| !line.is_empty() && !line.starts_with('['));
    let points: Vec<String> = lines.map(|line| line.replace('"', "")).collect();
    Ok(format!("[{group}]\n{}\n", points.join("\n")))
}

#[test]
fn the_package_passes_its_tests() {
    let python = match interpreter() {
        Ok(python) => python,
        Err(reason) => {
            let text = format!("Python 3.11 or later with venv is needed ({reason})");
            assert!(env::var("CI").is_err(), "{text}");
            eprintln!("skipped: {text}");
            return;
        }
    };
    let python = environment(&python).unwrap();
    let site = site().unwrap();
    let tests = run(Command::new(&python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10", "python/tests"])
        .current_dir(root())
        .env("PYTHONPATH", &site)
        .env("TESSERA_BINARY", binary())
        .env("PYTHONDONTWRITEBYTECODE", "1"));
    let types = run(Command::new(&python)
        .args(["-m", "mypy", "--cache-dir"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy"))
        .current_dir(root()));
    fs::remove_dir_all(&site).unwrap();
    tests.unwrap();
    types.unwrap();
}
