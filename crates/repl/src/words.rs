//! Keywords of the dialect, for completion and colours.

/// Words that begin a statement.
pub const STATEMENTS: &[&str] = &[
    "SELECT",
    "WITH",
    "FROM",
    "EXPLAIN",
    "DESCRIBE",
    "SHOW",
    "CREATE",
    "DROP",
    "COPY",
    "SET",
    "CANCEL QUERY",
    "VALUES",
    "SUMMARIZE",
    "PIVOT",
    "UNPIVOT",
];

/// Words that may follow an operand: clauses, operators.
pub const CLAUSES: &[&str] = &[
    "FROM",
    "WHERE",
    "GROUP BY",
    "HAVING",
    "ORDER BY",
    "LIMIT",
    "OFFSET",
    "AS",
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "BETWEEN",
    "LIKE",
    "JOIN",
    "LEFT JOIN",
    "INNER JOIN",
    "CROSS JOIN",
    "ON",
    "USING",
    "UNION ALL",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "ASC",
    "DESC",
    "NULLS FIRST",
    "NULLS LAST",
    "OVER",
    "FILTER",
    "THEN",
    "WHEN",
    "ELSE",
    "END",
];

/// Words that may begin an operand.
pub const OPERANDS: &[&str] =
    &["CASE", "CAST", "DISTINCT", "EXISTS", "FALSE", "INTERVAL", "NOT", "NULL", "SELECT", "TRUE"];

/// Words that may follow the first words of a statement; the longest match counts.
pub const FOLLOWING: &[(&[&str], &[&str])] = &[
    (&["CREATE"], &["TENSOR", "TEMP TENSOR", "VIEW", "EXTERNAL TABLE", "OR REPLACE"]),
    (&["CREATE", "OR"], &["REPLACE"]),
    (&["CREATE", "OR", "REPLACE"], &["TENSOR", "TEMP TENSOR", "VIEW", "EXTERNAL TABLE"]),
    (&["CREATE", "TEMP"], &["TENSOR"]),
    (&["CREATE", "EXTERNAL"], &["TABLE", "TENSOR"]),
    (&["DROP"], &["TENSOR", "TABLE", "VIEW"]),
    (&["SHOW"], &["TENSORS", "TABLES", "FUNCTIONS", "QUERIES", "WORKERS", "ALL"]),
    (&["EXPLAIN"], &["ANALYZE", "VERBOSE", "SELECT", "WITH", "CREATE", "COPY"]),
    (&["EXPLAIN", "ANALYZE"], &["VERBOSE", "SELECT", "WITH", "CREATE", "COPY"]),
    (&["EXPLAIN", "VERBOSE"], &["SELECT", "WITH", "CREATE", "COPY"]),
    (&["CANCEL"], &["QUERY"]),
];

/// Words after which a relation is expected.
pub const BEFORE_RELATION: &[&str] =
    &["FROM", "JOIN", "DESCRIBE", "DESC", "SUMMARIZE", "PIVOT", "UNPIVOT"];

/// Words that end the list of relations of a block.
pub const AFTER_RELATIONS: &[&str] = &[
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "UNION",
    "EXCEPT",
    "INTERSECT",
    "QUALIFY",
    "WINDOW",
];

/// Formats after `STORED AS`.
pub const FORMATS: &[&str] = &["ZARR", "NPY", "NPZ", "PARQUET", "CSV", "NDJSON", "ARROW"];

/// Types of cells.
pub const DTYPES: &[&str] = &[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
    "float64",
];

/// Words that are coloured but not completed.
const MORE: &[&str] = &[
    "ALL",
    "ANALYZE",
    "BY",
    "CELLS",
    "CROSS",
    "EXTERNAL",
    "FIRST",
    "FORMAT",
    "GROUP",
    "IF",
    "INNER",
    "LAST",
    "LEFT",
    "LOCATION",
    "NULLS",
    "OPTIONS",
    "ORDER",
    "PARTITION",
    "QUERIES",
    "QUERY",
    "QUALIFY",
    "RANGE",
    "REPLACE",
    "ROWS",
    "PRECEDING",
    "FOLLOWING",
    "CURRENT",
    "ROW",
    "UNBOUNDED",
    "STORED",
    "TABLE",
    "TABLES",
    "TEMP",
    "TENSOR",
    "TENSORS",
    "TO",
    "VERBOSE",
    "VIEW",
    "WINDOW",
    "FUNCTIONS",
    "WORKERS",
];

/// True for a keyword, in any case.
pub fn is_keyword(word: &str) -> bool {
    let same = |list: &[&str]| {
        list.iter().any(|k| k.split(' ').any(|part| part.eq_ignore_ascii_case(word)))
    };
    same(STATEMENTS) || same(CLAUSES) || same(OPERANDS) || same(MORE)
}
