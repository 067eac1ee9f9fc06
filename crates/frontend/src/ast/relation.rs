//! Classifies a relation in `FROM` by its syntax alone.

use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, TableAlias, TableFactor,
};

/// A relation of `FROM`; the alias is `None` when none is written.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum Relation<'a> {
    /// `name [alias]`: a tensor, view, external table or CTE.
    Name {
        /// The name, possibly qualified.
        name: &'a ObjectName,
        alias: Option<&'a Ident>,
    },
    /// `'path-or-url' [alias]`.
    Url {
        /// The string's content, with the string's span.
        url: &'a Ident,
        alias: Option<&'a Ident>,
    },
    /// `CELLS(expr) [alias]`.
    Cells {
        /// The word `CELLS` as written.
        name: &'a Ident,
        /// The tensor expression.
        expr: &'a Expr,
        alias: Option<&'a Ident>,
    },
    /// `read_zarr('url', group => 'x') [alias]` and any other table function.
    Function {
        /// The function's name.
        name: &'a ObjectName,
        /// Its arguments as written.
        args: &'a [FunctionArg],
        alias: Option<&'a Ident>,
    },
    /// `(query) [alias]`.
    Subquery {
        query: &'a Query,
        /// Its alias, with the names of its columns if they are written.
        alias: Option<&'a TableAlias>,
    },
    /// Everything else: joins in parentheses, `UNNEST`, `PIVOT`, `LATERAL`.
    Other(&'a TableFactor),
}

/// The kind of data at a URL, judged by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlKind {
    /// Arrays: all other extensions.
    Tensor,
    /// Parquet, CSV, JSON, NDJSON and Arrow IPC.
    Rows,
}

/// Formats of arrays after `read_` and `STORED AS`.
pub const TENSOR_FORMATS: [&str; 9] =
    ["zarr", "npy", "npz", "netcdf", "hdf5", "tiff", "grib", "safetensors", "references"];

impl UrlKind {
    /// Classifies a URL, ignoring its query and its `#group`; a list of URLs by the last one.
    pub fn of(url: &str) -> Self {
        match Self::ending(url).as_str() {
            "parquet" | "csv" | "tsv" | "json" | "ndjson" | "jsonl" | "arrow" | "arrows"
            | "feather" => Self::Rows,
            _ => Self::Tensor,
        }
    }

    /// The ending of a URL's file name, in small letters and without that of a compression.
    pub fn ending(url: &str) -> String {
        let url = if url.starts_with("[\"") { url.trim_end_matches(['"', ']']) } else { url };
        let path = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut parts = name.rsplit('.').map(str::to_ascii_lowercase);
        let ending = parts.next().unwrap_or_default();
        match ending.as_str() {
            "gz" | "bz2" | "zst" | "xz" => parts.next().unwrap_or_default(),
            _ => ending,
        }
    }
}

/// Classifies a relation of `FROM`.
pub fn relation(factor: &TableFactor) -> Relation<'_> {
    match factor {
        TableFactor::Table { name, alias, args: None, .. } => {
            let alias = alias.as_ref().map(|alias| &alias.name);
            match name.0.as_slice() {
                [part] => match part.as_ident() {
                    Some(url) if url.quote_style == Some('\'') => Relation::Url { url, alias },
                    _ => Relation::Name { name, alias },
                },
                _ => Relation::Name { name, alias },
            }
        }
        TableFactor::Table { name, alias, args: Some(args), .. } => {
            let alias = alias.as_ref().map(|alias| &alias.name);
            if let [part] = name.0.as_slice()
                && let Some(ident) = part.as_ident()
                && ident.quote_style.is_none()
                && ident.value.eq_ignore_ascii_case("cells")
                && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))] = args.args.as_slice()
            {
                return Relation::Cells { name: ident, expr, alias };
            }
            Relation::Function { name, args: &args.args, alias }
        }
        TableFactor::Derived { lateral: false, subquery, alias, .. } => {
            Relation::Subquery { query: subquery, alias: alias.as_ref() }
        }
        other => Relation::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::UrlKind;

    #[test]
    fn the_ending_of_the_path_decides() {
        assert_eq!(UrlKind::of("s3://b/regions.parquet"), UrlKind::Rows);
        assert_eq!(UrlKind::of("https://h/a.CSV.gz?sig=a/b.zarr"), UrlKind::Rows);
        assert_eq!(UrlKind::of("s3://b/air.zarr/#group/x.csv"), UrlKind::Tensor);
        assert_eq!(UrlKind::of("x.npy"), UrlKind::Tensor);
        assert_eq!(UrlKind::of(""), UrlKind::Tensor);
        assert_eq!(UrlKind::of("[\"a/x.nc\",\"b/*.csv\"]"), UrlKind::Rows);
        assert_eq!(UrlKind::ending("exp.json/x.csv.gz"), "csv");
        assert_eq!(UrlKind::ending("data.json.TSV"), "tsv");
        assert_eq!(UrlKind::ending("x"), "x");
    }
}
