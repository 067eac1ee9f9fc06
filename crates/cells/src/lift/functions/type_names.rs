//! `typeof(x)`: the type of a column in SQL's words, as in DuckDB.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::ScalarUDF;

use super::OfArrays;

const NAME: &str = "typeof";

pub(super) fn function() -> ScalarUDF {
    let named = |arrays: &[ArrayRef]| -> Result<ArrayRef> {
        let [values] = arrays else {
            return internal_err!("`{NAME}` of {} arrays", arrays.len());
        };
        let name = name_of(values.data_type());
        Ok(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(name, values.len()))))
    };
    let about = "The name of the type of x in SQL, such as `BIGINT`.";
    OfArrays::taking(NAME, taken, DataType::Utf8, named).documented("typeof(x)", about).udf()
}

fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [_] => Ok(types.to_vec()),
        _ => plan_err!("`{name}` takes one argument"),
    }
}

fn name_of(of: &DataType) -> String {
    let name = match of {
        DataType::Null => "\"NULL\"",
        DataType::Boolean => "BOOLEAN",
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INTEGER",
        DataType::Int64 => "BIGINT",
        DataType::UInt8 => "UTINYINT",
        DataType::UInt16 => "USMALLINT",
        DataType::UInt32 => "UINTEGER",
        DataType::UInt64 => "UBIGINT",
        DataType::Float32 => "FLOAT",
        DataType::Float64 => "DOUBLE",
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "VARCHAR",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BLOB",
        DataType::FixedSizeBinary(_) => "BLOB",
        DataType::Date32 | DataType::Date64 => "DATE",
        DataType::Time32(_) | DataType::Time64(_) => "TIME",
        DataType::Timestamp(_, None) => "TIMESTAMP",
        DataType::Timestamp(_, Some(_)) => "TIMESTAMP WITH TIME ZONE",
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL",
        DataType::Dictionary(_, values) => return name_of(values),
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::ListView(of)
        | DataType::LargeListView(of) => return format!("{}[]", name_of(of.data_type())),
        DataType::FixedSizeList(of, count) => {
            return format!("{}[{count}]", name_of(of.data_type()));
        }
        DataType::Struct(fields) => {
            let field = |name: &str, of| format!("{} {}", quoted(name), name_of(of));
            let fields: Vec<String> =
                fields.iter().map(|of| field(of.name(), of.data_type())).collect();
            return format!("STRUCT({})", fields.join(", "));
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let parts: Vec<String> = fields.iter().map(|of| name_of(of.data_type())).collect();
                return format!("MAP({})", parts.join(", "));
            }
            other => return format!("MAP({})", name_of(other)),
        },
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => return format!("DECIMAL({p},{s})"),
        other => return other.to_string().to_uppercase(),
    };
    name.to_string()
}

fn quoted(name: &str) -> String {
    let is_plain = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_word = name.chars().all(is_plain) && !name.starts_with(|c: char| c.is_ascii_digit());
    match is_word && !name.is_empty() {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{Field, Fields};

    #[test]
    fn types_have_the_names_of_sql() {
        let decimal = DataType::new_list(DataType::Decimal128(2, 1), true);
        let fields = Fields::from(vec![
            Field::new("a", DataType::Int32, true),
            Field::new("B c", DataType::new_list(decimal.clone(), true), true),
        ]);
        let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for (of, want) in [
            (DataType::Null, "\"NULL\""),
            (text, "VARCHAR"),
            (decimal, "DECIMAL(2,1)[]"),
            (DataType::Struct(fields), "STRUCT(a INTEGER, \"B c\" DECIMAL(2,1)[][])"),
            (DataType::Timestamp(arrow::datatypes::TimeUnit::Second, None), "TIMESTAMP"),
        ] {
            assert_eq!(name_of(&of), want);
        }
    }
}
