//! Columns of `key=value` directories, as Hive, Spark and pyarrow write them.
//!
//! ```text
//! year=2020/month=1/a.parquet ⇒ year 2020, month 1 for the rows of the file
//! ```

use arrow::datatypes::DataType;

/// What Hive writes for NULL.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns of directories that all files are in, in the same order; none if a file is elsewhere. Their values are
/// integers or dates if all of them are, and texts otherwise.
pub(super) fn keys(names: &[String]) -> Vec<(String, DataType)> {
    let of_name = |name: &String| -> Vec<(String, String)> {
        let directories = name.rsplit_once('/').map_or("", |(directories, _)| directories);
        let keys = directories.split('/').map_while(|part| part.split_once('='));
        keys.map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    let Some(first) = names.first().map(of_name) else { return Vec::new() };
    let mut types: Vec<Option<DataType>> = vec![None; first.len()];
    for name in names {
        let values = of_name(name);
        let is_same = values.len() == first.len()
            && values.iter().zip(&first).all(|((key, _), (first, _))| key == first);
        if !is_same {
            return Vec::new();
        }
        for (known, (_, value)) in types.iter_mut().zip(&values) {
            let of_value = type_of(value);
            *known = match known.take() {
                None => Some(of_value),
                Some(known) if known == of_value => Some(known),
                Some(_) => Some(DataType::Utf8),
            };
        }
    }
    let types = types.into_iter().map(|of| of.unwrap_or(DataType::Utf8));
    first.into_iter().map(|(key, _)| key).zip(types).collect()
}

fn type_of(value: &str) -> DataType {
    let is_date = || {
        let parts: Vec<&str> = value.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        lengths == [4, 2, 2] && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    };
    match value {
        NULL => DataType::Utf8,
        _ if value.parse::<i64>().is_ok() => DataType::Int64,
        _ if is_date() => DataType::Date32,
        _ => DataType::Utf8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_all_files_share_are_columns() {
        let keys = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            keys(&names).into_iter().map(|(key, of)| format!("{key} {of}")).collect::<Vec<_>>()
        };
        let hive = ["year=2020/month=01/a.parquet", "year=2021/month=12/b.parquet"];
        assert_eq!(keys(&hive), ["year Int64", "month Int64"]);
        assert_eq!(keys(&["d=2020-01-05/a", "d=2020-02-05/b"]), ["d Date32"]);
        assert_eq!(keys(&["k=1/a", "k=x/b"]), ["k Utf8"]);
        assert_eq!(keys(&["k=1/a", "k=__HIVE_DEFAULT_PARTITION__/b"]), ["k Utf8"]);
        assert_eq!(keys(&["k=1/x/a", "k=2/y/b"]), ["k Int64"]);
        assert_eq!(keys(&["k=1/a", "l=1/b"]), Vec::<String>::new());
        assert_eq!(keys(&["k=1/a", "b"]), Vec::<String>::new());
        assert_eq!(keys(&["a.parquet", "x/b.parquet"]), Vec::<String>::new());
        assert_eq!(keys(&[]), Vec::<String>::new());
    }
}
