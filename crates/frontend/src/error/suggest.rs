//! "Did you mean": the nearest of a few known words, else those that exist.

use crate::ast::UrlKind;

/// The most names that a hint lists.
const NAMES_MAX: usize = 10;

/// Endings of files of arrays, for names that are paths without quotes.
const ARRAY_ENDINGS: [&str; 14] = [
    "zarr",
    "npy",
    "npz",
    "nc",
    "nc4",
    "cdf",
    "h5",
    "hdf5",
    "tif",
    "tiff",
    "grib",
    "grib2",
    "grb",
    "safetensors",
];

/// The longest word that is compared; a longer one is not a misspelled keyword.
const LENGTH_MAX: usize = 32;

/// Returns the candidate nearest to `word`, ignoring case, if it is close enough to be a misspelling.
///
/// Short words allow one edit, words of five or more characters two. A candidate equal to the
/// word is not a suggestion.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    if word.len() > LENGTH_MAX {
        return None;
    }
    let word: Vec<char> = word.to_lowercase().chars().collect();
    let allowed = if word.len() >= 5 { 2 } else { 1 };
    candidates
        .iter()
        .map(|candidate| {
            let target: Vec<char> = candidate.to_lowercase().chars().collect();
            (distance(&word, &target), *candidate)
        })
        .filter(|(edits, _)| (1..=allowed).contains(edits))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// The hint for an unknown name: the one candidate, or the names that exist, or that a path has quotes.
pub(super) fn hint(kind: &str, name: &str, candidates: &[String]) -> Option<String> {
    match candidates {
        [] => match (kind, name.rsplit_once('.')) {
            ("relation", _) if is_path(name) => {
                Some(format!("put paths and URLs in quotes: `FROM '{name}'`"))
            }
            ("function", Some((of, method))) => Some(format!(
                "functions have no prefix, and methods are written as functions: `{method}(…)`, `{method}({of}, …)`"
            )),
            _ => None,
        },
        [one] => Some(format!("did you mean `{one}`?")),
        several => {
            let shown: Vec<String> =
                several.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect();
            let more = match several.len().saturating_sub(NAMES_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            Some(format!("the {kind}s are {}{more}", shown.join(", ")))
        }
    }
}

/// True if a name is that of a file by its form.
fn is_path(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    name.contains('/')
        || UrlKind::of(name) == UrlKind::Rows && name.contains('.')
        || ARRAY_ENDINGS.contains(&ending.as_str())
}

/// Edit distance of two words, where swapping two neighbours is one edit.
///
/// # Source
/// The optimal string alignment distance (a restricted Damerau–Levenshtein distance).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best =
                (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::{hint, nearest};

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(nearest("form", &["FROM", "WHERE"]), Some("FROM"));
        assert_eq!(nearest("selcet", &["SELECT", "SET"]), Some("SELECT"));
        assert_eq!(nearest("select", &["SELECT"]), None);
        assert_eq!(nearest("lat", &["FROM", "WHERE"]), None);
    }

    #[test]
    fn hints_list_existing_names() {
        let of = |kind, name, names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
            hint(kind, name, &names).unwrap_or_default()
        };
        assert_eq!(of("column", "lta", &["lat"]), "did you mean `lat`?");
        assert_eq!(of("column", "level", &["lat", "lon"]), "the columns are `lat`, `lon`");
        let many = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        assert!(of("column", "level", &many).ends_with("`i`, `j` and 2 more"));
        assert_eq!(of("relation", "era.nc", &[]), "put paths and URLs in quotes: `FROM 'era.nc'`");
        assert!(of("function", "x.mean", &[]).ends_with("`mean(x, …)`"));
        assert_eq!(of("relation", "csv", &[]), "");
        assert_eq!(of("relation", "system.jobs", &[]), "");
    }
}
