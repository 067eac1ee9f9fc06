//! The mark `#` between a path or URL and a group, in both of which it may also be a letter.

/// A local path and the group after its `#`. Names of files and directories may have `#`, too: the longest path that
/// exists counts, also as the directory of a file that does not.
pub(super) fn parted(text: &str) -> (&str, &str) {
    if !text.contains('#') {
        return (text, "");
    }
    let exists = |path: &str| std::path::Path::new(path).exists();
    let mut slashes = text.rmatch_indices('/').map(|(at, _)| at);
    let within = slashes.find(|&at| exists(&text[..at])).unwrap_or(0);
    let marks = text.rmatch_indices('#').map(|(at, _)| at);
    let marks: Vec<usize> = marks.take_while(|&at| at >= within).collect();
    let Some(last) = marks.first().filter(|_| !exists(text)) else { return (text, "") };
    let at = marks.iter().find(|&&at| exists(&text[..at])).unwrap_or(last);
    (&text[..*at], &text[at + 1..])
}

/// A group's path with `#` and `%` for their escapes. Others are taken as they are written, as all of a path or key.
pub(super) fn unescaped(group: &str) -> String {
    group.replace("%23", "#").replace("%25", "%")
}

/// A group's path as it is written after `#`.
pub(crate) fn escaped(group: &str) -> String {
    group.replace('%', "%25").replace('#', "%23")
}

/// True for a URL whose path has escapes: its first `#` begins the group.
pub(crate) fn has_escapes(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    ["file", "http", "https"].iter().any(|s| scheme.eq_ignore_ascii_case(s))
}

/// A path or URL and the group after its `#`, as they are written.
pub(crate) fn place_and_group(url: &str) -> (&str, &str) {
    let parts = match url.contains("://") {
        false => return parted(url),
        true if has_escapes(url) => url.split_once('#'),
        true => url.rsplit_once('#'),
    };
    parts.unwrap_or((url, ""))
}

/// The path or URL of the entry `name` of a listing of `directory`, which has no group.
pub(crate) fn below(directory: &str, name: &str) -> String {
    match has_escapes(directory) {
        true => format!("{directory}/{}", escaped(name).replace('?', "%3F")),
        false => format!("{directory}/{name}"),
    }
}

/// The text of a path or URL that has `#` in its own name alone: the last one of a key would begin a group.
pub(crate) fn without_group(mut place: String) -> String {
    if place.contains("://") && place.contains('#') && !has_escapes(&place) {
        place.push('#');
    }
    place
}

/// The path or URL of a group directly in that of `url`, as [`open`](crate::source::open) takes it.
pub fn inside(url: &str, group: &str) -> String {
    let ((place, outer), group) = (place_and_group(url), escaped(group));
    match outer.trim_matches('/') {
        "" => format!("{place}#{group}"),
        outer => format!("{place}#{outer}/{group}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::Location;
    use super::*;

    #[test]
    fn groups_are_inside_of_groups() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run#1.nc");
        let file = path.to_str().unwrap();
        // As long as no file exists, the last mark begins the group.
        assert_eq!(Location::parse(file).unwrap().group, "1.nc");
        std::fs::write(&path, "").unwrap();
        let new = directory.path().join("to#2");
        std::fs::create_dir(&new).unwrap();
        for name in ["new.zarr", "*.nc", "a/b.nc"] {
            let below = new.join(name).to_str().unwrap().to_string();
            assert_eq!(place_and_group(&below), (&*below, ""));
            let marked = format!("{below}#g/h");
            assert_eq!(place_and_group(&marked), (&*below, "g/h"));
        }
        for (url, of) in [(file, "#a"), ("s3://b/x#1.nc", "#"), ("https://h/x.nc", "#a/")] {
            let mut at = format!("{url}{of}");
            let display = Location::parse(&at).unwrap().display;
            let mut want = of.trim_matches(['#', '/']).to_string();
            for group in ["Channel #1", "50%", "%23 é?", "it's"] {
                at = inside(&at, group);
                want = if want.is_empty() { group.into() } else { format!("{want}/{group}") };
                let found = Location::parse(&at).unwrap();
                assert_eq!((found.group, &found.display), (want.clone(), &display), "{at}");
            }
        }
    }

    #[test]
    fn names_of_a_listing_may_have_marks() {
        for directory in ["s3://b/run#1", "/no/run", "file:///no/run%231", "memory://"] {
            let root = Location::parse(&without_group(directory.into())).unwrap();
            assert_eq!(root.group, "", "{directory}");
            for name in ["a.nc", "50% a.nc", "a/x#1?.nc"] {
                let found = Location::parse(&without_group(below(directory, name))).unwrap();
                // As long as no file exists, the last mark of a path begins the group.
                let is_parted = directory.starts_with('/') && name.contains('#');
                let want = if is_parted { "1?.nc" } else { "" };
                assert_eq!(found.group, want, "{directory} {name}");
                let end = if is_parted { "a/x" } else { name };
                assert!(found.display.ends_with(end), "{}", found.display);
            }
        }
        assert_eq!(place_and_group("https://h/x.nc#a#b"), ("https://h/x.nc", "a#b"));
        assert_eq!(place_and_group("s3://b/x#1.nc#b"), ("s3://b/x#1.nc", "b"));
        assert_eq!(place_and_group("s3://b/x#1.nc#"), ("s3://b/x#1.nc", ""));
    }
}
