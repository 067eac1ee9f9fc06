//! Fail-points: named steps at which a test makes a debug build fail or die.
//!
//! `TESSERA_FAIL='statements.put=abort@3;spill.write=enospc'` does so at the third record of a statement, and at each
//! spilled chunk. The actions are
//!
//! ```text
//!   abort     the process ends at once, as if it was killed: nothing is flushed, nothing is removed
//!   enospc    the step fails as on a full device
//!   error     the step fails otherwise
//!   sleep     the step takes 100 ms more
//!   wait:P    the step waits until there is a file at the path P, as on a disk that is busy
//! ```
//! `operand.sort`, with the name of any kind of stage, is the point where its operands run; `rows.batch` is the one where
//! a worker sends a batch of rows, and `rows.part` the one where it sends a batch that it keeps to another worker. `@n`
//! selects the n-th time that the point is reached, and no other; without it the action applies each time. A release build
//! has no fail-points.

/// Prefixes of the fail-points of a folder's documents ([`crate::sink::Folder`]): the first part of the key.
const DOCUMENTS: [&str; 3] = ["catalog", "statements", "epochs"];
/// Before the write; when the data are on the device without a name (a file), or stored before the response arrives (an
/// object); when the document has its name; before it is removed, and after.
const STEPS: [&str; 5] = ["put", "stored", "named", "remove", "removed"];
/// All other fail-points.
const PLACES: [&str; 19] = [
    "warehouse.json.put",
    "warehouse.json.stored",
    "warehouse.json.named",
    "chunk.stored",
    "chunk.named",
    "data.claim",
    "data.remove",
    "data.marks_removed",
    "zarr.object",
    "zarr.metadata",
    "append.committed",
    "file.write",
    "file.finish",
    "publish",
    "publish.aside",
    "published",
    "spill.write",
    "spill.written",
    "promise",
];

/// The fail-points of a worker that sends a batch of rows. They are not among [`names`], because servers do not reach them.
#[cfg(debug_assertions)]
const ROWS: [&str; 2] = ["rows.batch", "rows.part"];

/// Runs a fail-point.
///
/// # Errors
/// The failure that `TESSERA_FAIL` sets for it.
#[inline(always)]
pub fn point(name: &'static str) -> std::io::Result<()> {
    #[cfg(debug_assertions)]
    debug::reached(name)?;
    let _ = name;
    Ok(())
}

/// Runs the fail-point of a step of the document at `key`.
///
/// # Errors
/// The errors of [`point`].
#[inline(always)]
pub(crate) fn document(key: &str, step: &'static str) -> std::io::Result<()> {
    #[cfg(debug_assertions)]
    debug::reached(&format!("{}.{step}", key.split('/').next().unwrap_or(key)))?;
    let _ = (key, step);
    Ok(())
}

/// Runs the fail-point of an operand of a kind of stage, before the operand runs.
///
/// # Errors
/// The errors of [`point`].
#[inline(always)]
pub fn operand(kind: impl FnOnce() -> String) -> std::io::Result<()> {
    #[cfg(debug_assertions)]
    if debug::has_any() {
        debug::reached(&format!("operand.{}", kind()))?;
    }
    #[cfg(not(debug_assertions))]
    let _ = kind;
    Ok(())
}

/// Names of all fail-points that servers reach.
pub fn names() -> Vec<String> {
    let steps = DOCUMENTS.iter().flat_map(|d| STEPS.iter().map(move |s| format!("{d}.{s}")));
    steps.chain(PLACES.iter().map(|p| p.to_string())).collect()
}

/// Parses `TESSERA_FAIL` in a debug build.
///
/// # Errors
/// A syntax error or an unknown name in it.
pub fn check() -> Result<(), String> {
    #[cfg(debug_assertions)]
    debug::check()?;
    Ok(())
}

#[cfg(debug_assertions)]
mod debug {
    use std::io::{Error, ErrorKind, Result};
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum What {
        Abort,
        NoSpace,
        Error,
        Sleep,
        Wait(&'static Path),
    }

    #[derive(Debug)]
    struct Fault {
        name: String,
        what: What,
        at: Option<u64>,
        reached: AtomicU64,
    }

    static FAULTS: OnceLock<std::result::Result<Vec<Fault>, String>> = OnceLock::new();

    fn faults() -> &'static std::result::Result<Vec<Fault>, String> {
        FAULTS.get_or_init(|| parse(&std::env::var("TESSERA_FAIL").unwrap_or_default()))
    }

    pub(super) fn has_any() -> bool {
        faults().as_ref().is_ok_and(|f| !f.is_empty())
    }

    pub(super) fn check() -> std::result::Result<(), String> {
        faults().as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn parse(text: &str) -> std::result::Result<Vec<Fault>, String> {
        let known = super::names();
        let parts = text.split(';').map(str::trim).filter(|p| !p.is_empty());
        parts
            .map(|part| {
                let (name, rest) = part
                    .split_once('=')
                    .ok_or_else(|| format!("`{part}` is not `name=what` or `name=what@n`"))?;
                let is_of_worker = super::ROWS.contains(&name) || name.starts_with("operand.");
                if !is_of_worker && !known.iter().any(|k| k == name) {
                    return Err(format!(
                        "unknown fail-point `{name}`; known are {}",
                        known.join(", ")
                    ));
                }
                let (what, at) = match rest.split_once('@') {
                    None => (rest, None),
                    Some((what, n)) => match n.parse() {
                        Ok(n) if n > 0 => (what, Some(n)),
                        _ => return Err(format!("`{n}` in `{part}` is not a number from 1 on")),
                    },
                };
                let what = match what {
                    "abort" => What::Abort,
                    "enospc" => What::NoSpace,
                    "error" => What::Error,
                    "sleep" => What::Sleep,
                    _ => match what.strip_prefix("wait:") {
                        // Fail-points are parsed once in a process.
                        Some(path) => {
                            What::Wait(Box::leak(PathBuf::from(path).into_boxed_path()))
                        }
                        None => {
                            return Err(format!(
                                "`{what}` in `{part}` is not one of abort, enospc, error, sleep, wait:PATH"
                            ));
                        }
                    },
                };
                Ok(Fault { name: name.into(), what, at, reached: AtomicU64::new(0) })
            })
            .collect()
    }

    pub(super) fn reached(name: &str) -> Result<()> {
        let Ok(faults) = faults() else { return Ok(()) };
        for fault in faults.iter().filter(|f| f.name == name) {
            let n = fault.reached.fetch_add(1, Relaxed) + 1;
            if fault.at.is_some_and(|at| at != n) {
                continue;
            }
            tracing::warn!(name, n, what = ?fault.what, "fail-point");
            return match fault.what {
                What::Abort => std::process::abort(),
                What::NoSpace => Err(Error::from(ErrorKind::StorageFull)),
                What::Error => Err(Error::other(format!("the fail-point `{name}`"))),
                What::Sleep => {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
                What::Wait(path) => {
                    while !path.exists() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    continue;
                }
            };
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        #![allow(clippy::unwrap_used, reason = "tests")]
        use super::*;

        #[test]
        fn fail_points_parse_or_are_refused() {
            assert!(parse("").unwrap().is_empty());
            let all =
                parse("spill.write=enospc; catalog.put=abort@3;publish=wait:/tmp/a@2").unwrap();
            let told: Vec<_> = all.iter().map(|f| (f.name.as_str(), f.what, f.at)).collect();
            let expected = [
                ("spill.write", What::NoSpace, None),
                ("catalog.put", What::Abort, Some(3)),
                ("publish", What::Wait(Path::new("/tmp/a")), Some(2)),
            ];
            assert_eq!(told, expected);
            for (bad, why) in [
                ("spill.write", "name=what"),
                ("spill.wrote=abort", "unknown fail-point `spill.wrote`"),
                ("spill.write=die", "`die`"),
                ("spill.write=abort@0", "`0`"),
                ("spill.write=abort@x", "`x`"),
            ] {
                let e = parse(bad).unwrap_err();
                assert!(e.contains(why), "{e}");
            }
        }
    }
}
