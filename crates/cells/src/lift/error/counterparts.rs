//! Functions of other dialects and their counterparts here.

/// Names of functions, in lower case, and their counterparts.
const COUNTERPARTS: [(&str, &str); 10] = [
    ("arg_max", "first_value(x ORDER BY y DESC NULLS LAST)"),
    ("arg_min", "first_value(x ORDER BY y)"),
    ("date_format", "to_char(t, '%Y-%m-%d')"),
    ("dateadd", "t + INTERVAL '1 day'"),
    ("every", "bool_and(x > 0)"),
    ("iif", "CASE WHEN x > 0 THEN 1 ELSE 2 END"),
    ("max_by", "first_value(x ORDER BY y DESC NULLS LAST)"),
    ("min_by", "first_value(x ORDER BY y)"),
    ("variance", "var(x)"),
    ("width_bucket", "digitize(x, [0, 10, 20])"),
];

pub(super) fn hint(function: &str) -> Option<String> {
    let function = function.to_ascii_lowercase();
    let known = COUNTERPARTS.iter().find(|(name, _)| *name == function);
    known.map(|(_, counterpart)| format!("write `{counterpart}`"))
}
