//! Completion of paths.

use std::path::Path;

/// Upper bound on the entries read from a directory.
const ENTRIES_MAX: usize = 10_000;

/// Paths in the local file system that begin with `start`, sorted. Directories end in `/`, except those that are a
/// tensor. Hidden entries are shown once their dot is typed. URLs are not completed, because listing a store is slow.
pub fn files(start: &str) -> Vec<String> {
    if start.contains("://") {
        return Vec::new();
    }
    let (directory, name) = match start.rfind('/') {
        Some(at) => start.split_at(at + 1),
        None => ("", start),
    };
    let place = if directory.is_empty() { Path::new(".") } else { Path::new(directory) };
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut out: Vec<String> = entries
        .take(ENTRIES_MAX)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let own = entry.file_name().into_string().ok()?;
            if !own.starts_with(name) || (own.starts_with('.') && !name.starts_with('.')) {
                return None;
            }
            let path = entry.path();
            let end = if path.is_dir() && !is_tensor(&path) { "/" } else { "" };
            Some(format!("{directory}{own}{end}"))
        })
        .collect();
    out.sort();
    out
}

/// True for a directory that holds a Zarr array or group.
fn is_tensor(path: &Path) -> bool {
    ["zarr.json", ".zarray", ".zgroup"].iter().any(|f| path.join(f).is_file())
}
