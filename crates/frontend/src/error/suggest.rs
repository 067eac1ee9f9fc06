//! "Did you mean": the nearest of a few known words.

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
    use super::nearest;

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(nearest("form", &["FROM", "WHERE"]), Some("FROM"));
        assert_eq!(nearest("selcet", &["SELECT", "SET"]), Some("SELECT"));
        assert_eq!(nearest("select", &["SELECT"]), None);
        assert_eq!(nearest("lat", &["FROM", "WHERE"]), None);
    }
}
