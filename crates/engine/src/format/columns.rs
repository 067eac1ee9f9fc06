//! Arrow columns, read cell by cell.

use crate::answer::Cell;
use crate::error::Error;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray, LargeStringArray,
    MapArray, OffsetSizeTrait, PrimitiveArray, StringArray, StringViewArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{self as ty, ArrowPrimitiveType, DataType, Field, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tessera_cells::column_type;
use tessera_cells::lift::calendar;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{DAY_US, push_date, push_micros, split};

/// Key of a schema's metadata with the surface that the query was read in.
pub const SURFACE_KEY: &str = "tessera.surface";

/// The name of a column's type in JSON: NumPy's name if there is one, else that of DESCRIBE.
pub(super) fn type_name(field: &Field) -> String {
    if let Some(c) = calendar(field) {
        return DType::Datetime(c).name();
    }
    match field.data_type() {
        DataType::Boolean => "bool".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Timestamp(_, None) => "datetime64[us]".into(),
        DataType::Timestamp(_, Some(zone)) => format!("datetime64[us, {zone}]"),
        DataType::Duration(unit) => format!("timedelta64[{}]", unit_name(*unit)),
        DataType::Dictionary(_, values) => {
            type_name(&Field::new(field.name(), DataType::clone(values), true))
        }
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => {
            format!("{}[]", type_name(of))
        }
        _ => column_type(field),
    }
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// True if a column's cells are right-aligned.
pub(super) fn is_number(field: &Field) -> bool {
    field.data_type().is_numeric() && calendar(field).is_none()
}

/// Reads one integer of an array of a known type.
type ReadInt = fn(&dyn Array, usize) -> i64;

/// A column that can be read cell by cell.
pub(super) enum Column<'a> {
    Bool(&'a BooleanArray),
    Signed(&'a dyn Array, ReadInt),
    Unsigned(&'a dyn Array, fn(&dyn Array, usize) -> u64),
    F16(&'a PrimitiveArray<ty::Float16Type>),
    F32(&'a PrimitiveArray<ty::Float32Type>),
    F64(&'a PrimitiveArray<ty::Float64Type>),
    /// Counts of a unit, converted to microseconds.
    Time(&'a dyn Array, ReadInt, Unit, Calendar, bool),
    Date(&'a dyn Array, ReadInt),
    Text(Texts<'a>),
    List(&'a dyn Array, fn(&dyn Array, usize) -> ArrayRef, &'a Field),
    /// Named columns of the same rows.
    Record(&'a dyn Array, Vec<(&'a str, Column<'a>)>),
    /// Pairs of keys and values, which are shown as records.
    Map(&'a MapArray, &'a Field, &'a Field),
    /// Any other type, formatted by Arrow, and its NULLs: a dictionary's NULLs may be among its values.
    Other(&'a dyn Array, ArrayFormatter<'a>, Option<NullBuffer>),
}

/// An array of texts.
pub(super) enum Texts<'a> {
    Small(&'a StringArray),
    Large(&'a LargeStringArray),
    View(&'a StringViewArray),
}

impl<'a> Texts<'a> {
    pub(super) fn value(&self, row: usize) -> &'a str {
        match self {
            Texts::Small(a) => a.value(row),
            Texts::Large(a) => a.value(row),
            Texts::View(a) => a.value(row),
        }
    }
}

/// Microseconds in one unit, or units in one microsecond.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Times(i64),
    Over(i64),
}

fn read<T: ArrowPrimitiveType>(a: &dyn Array, i: usize) -> T::Native {
    a.as_primitive::<T>().value(i)
}

fn item<O: OffsetSizeTrait>(a: &dyn Array, i: usize) -> ArrayRef {
    let list: &GenericListArray<O> = a.as_list();
    list.value(i)
}

fn fixed_item(a: &dyn Array, i: usize) -> ArrayRef {
    let list: &FixedSizeListArray = a.as_fixed_size_list();
    list.value(i)
}

const PLAIN: FormatOptions<'static> = FormatOptions::new();

impl<'a> Column<'a> {
    /// Reads `array`, a column described by `field`.
    pub(super) fn new(array: &'a dyn Array, field: &'a Field) -> Result<Self, Error> {
        use Column::*;
        if let (Some(c), DataType::Int64) = (calendar(field), array.data_type()) {
            return Ok(Time(array, |a, i| read::<ty::Int64Type>(a, i), Unit::Times(1), c, false));
        }
        Ok(match array.data_type() {
            DataType::Boolean => Bool(array.as_boolean()),
            DataType::Int8 => Signed(array, |a, i| read::<ty::Int8Type>(a, i).into()),
            DataType::Int16 => Signed(array, |a, i| read::<ty::Int16Type>(a, i).into()),
            DataType::Int32 => Signed(array, |a, i| read::<ty::Int32Type>(a, i).into()),
            DataType::Int64 => Signed(array, |a, i| read::<ty::Int64Type>(a, i)),
            DataType::UInt8 => Unsigned(array, |a, i| read::<ty::UInt8Type>(a, i).into()),
            DataType::UInt16 => Unsigned(array, |a, i| read::<ty::UInt16Type>(a, i).into()),
            DataType::UInt32 => Unsigned(array, |a, i| read::<ty::UInt32Type>(a, i).into()),
            DataType::UInt64 => Unsigned(array, |a, i| read::<ty::UInt64Type>(a, i)),
            DataType::Float16 => F16(array.as_primitive()),
            DataType::Float32 => F32(array.as_primitive()),
            DataType::Float64 => F64(array.as_primitive()),
            DataType::Timestamp(unit, zone) => {
                let (get, unit): (ReadInt, Unit) = match unit {
                    TimeUnit::Second => {
                        (|a, i| read::<ty::TimestampSecondType>(a, i), Unit::Times(1_000_000))
                    }
                    TimeUnit::Millisecond => {
                        (|a, i| read::<ty::TimestampMillisecondType>(a, i), Unit::Times(1000))
                    }
                    TimeUnit::Microsecond => {
                        (|a, i| read::<ty::TimestampMicrosecondType>(a, i), Unit::Times(1))
                    }
                    TimeUnit::Nanosecond => {
                        (|a, i| read::<ty::TimestampNanosecondType>(a, i), Unit::Over(1000))
                    }
                };
                // A timestamp with a zone is an instant; it is shown in UTC.
                Time(array, get, unit, Calendar::Standard, zone.is_some())
            }
            DataType::Date32 => Date(array, |a, i| read::<ty::Date32Type>(a, i).into()),
            DataType::Date64 => {
                Date(array, |a, i| read::<ty::Date64Type>(a, i).div_euclid(86_400_000))
            }
            DataType::Utf8 => Text(Texts::Small(array.as_string())),
            DataType::LargeUtf8 => Text(Texts::Large(array.as_string())),
            DataType::Utf8View => Text(Texts::View(array.as_string_view())),
            DataType::List(f) => List(array, item::<i32>, f),
            DataType::LargeList(f) => List(array, item::<i64>, f),
            DataType::FixedSizeList(f, _) => List(array, fixed_item, f),
            DataType::Struct(fields) => {
                let columns = array.as_struct().columns().iter().zip(fields);
                let columns = columns.map(|(a, f)| Ok((f.name().as_str(), Column::new(a, f)?)));
                Record(array, columns.collect::<Result<_, Error>>()?)
            }
            DataType::Map(pairs, _) => match pairs.data_type() {
                DataType::Struct(pair) if pair.len() == 2 => {
                    Map(array.as_map(), &pair[0], &pair[1])
                }
                _ => Self::other(array)?,
            },
            _ => Self::other(array)?,
        })
    }

    fn other(array: &'a dyn Array) -> Result<Self, Error> {
        let format = ArrayFormatter::try_new(array, &PLAIN);
        let format = format.map_err(|source| Error::Rows { source })?;
        Ok(Column::Other(array, format, array.logical_nulls()))
    }

    fn array(&self) -> &dyn Array {
        use Column::*;
        match self {
            Bool(a) => *a,
            Text(Texts::Small(a)) => *a,
            Text(Texts::Large(a)) => *a,
            Text(Texts::View(a)) => *a,
            F16(a) => *a,
            F32(a) => *a,
            F64(a) => *a,
            Map(a, ..) => *a,
            Signed(a, _)
            | Unsigned(a, _)
            | Time(a, ..)
            | Date(a, _)
            | List(a, ..)
            | Record(a, _)
            | Other(a, ..) => *a,
        }
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        match self {
            Column::Other(_, _, nulls) => nulls.as_ref().is_some_and(|n| n.is_null(row)),
            _ => self.array().is_null(row),
        }
    }

    /// Appends a value of a column of moments or dates as ISO 8601.
    pub(super) fn push_moment(&self, raw: i64, out: &mut Vec<u8>) {
        match self {
            Column::Time(_, _, unit, calendar, zoned) => {
                let (micros, nanos) = match unit {
                    Unit::Times(n) => (raw.saturating_mul(*n), 0),
                    Unit::Over(n) => (raw.div_euclid(*n), raw.rem_euclid(*n)),
                };
                push_micros(micros, *calendar, out);
                if nanos != 0 {
                    if micros.rem_euclid(1_000_000) == 0 {
                        out.extend_from_slice(b".000000");
                    }
                    out.extend([100, 10, 1].map(|of| b'0' + (nanos / of % 10) as u8));
                }
                if *zoned {
                    out.push(b'Z');
                }
            }
            _ => push_date(&split(raw.saturating_mul(DAY_US), Calendar::Standard), out),
        }
    }

    pub(super) fn cell(&self, row: usize) -> Result<Cell<'static>, Error> {
        use Column::*;
        if self.is_null(row) {
            return Ok(Cell::Null);
        }
        Ok(match self {
            Bool(a) => Cell::Bool(a.value(row)),
            Signed(a, get) => Cell::Int(get(*a, row)),
            Unsigned(a, get) => Cell::UInt(get(*a, row)),
            F16(a) => Cell::F32(a.value(row).to_f32()),
            F32(a) => Cell::F32(a.value(row)),
            F64(a) => Cell::F64(a.value(row)),
            Time(a, get, ..) | Date(a, get) => {
                let mut text = Vec::new();
                self.push_moment(get(*a, row), &mut text);
                Cell::Text(String::from_utf8(text).unwrap_or_default().into())
            }
            Text(a) => Cell::Text(a.value(row).to_owned().into()),
            List(a, get, field) => {
                let values = get(*a, row);
                let column = Column::new(&values, field)?;
                Cell::List((0..values.len()).map(|i| column.cell(i)).collect::<Result<_, _>>()?)
            }
            Record(_, columns) => Cell::Record(
                columns
                    .iter()
                    .map(|(name, c)| Ok((name.to_string(), c.cell(row)?)))
                    .collect::<Result<_, Error>>()?,
            ),
            Map(a, key, value) => {
                let pairs = a.value(row);
                let keys = Column::new(pairs.column(0), key)?;
                let values = Column::new(pairs.column(1), value)?;
                let pair = |i| Ok::<_, Error>((keys.cell(i)?.text(), values.cell(i)?));
                Cell::Record((0..pairs.len()).map(pair).collect::<Result<_, Error>>()?)
            }
            Other(_, f, _) => {
                let text = f.value(row).try_to_string().map_err(|source| Error::Rows { source })?;
                Cell::Text(text.into())
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use arrow::array::{
        Date32Array, DictionaryArray, Float16Array, Int8Array, Int64Array, Int64Builder, ListArray,
        MapBuilder, NullArray, StringArray, StringBuilder, TimestampNanosecondArray,
        TimestampSecondArray,
    };
    use std::sync::Arc;

    fn texts(array: &dyn Array, field: &Field) -> Vec<String> {
        let c = Column::new(array, field).unwrap();
        (0..array.len()).map(|i| c.cell(i).unwrap().text()).collect()
    }

    #[test]
    fn moments_are_iso_texts_in_their_calendar() {
        let f = |t: DataType| Field::new("x", t, true);
        let ns = TimestampNanosecondArray::from(vec![Some(-1), None, Some(1_500_000_000)]);
        assert_eq!(
            texts(&ns, &f(ns.data_type().clone())),
            ["1969-12-31T23:59:59.999999999", "", "1970-01-01T00:00:01.500000"]
        );
        let ns = TimestampNanosecondArray::from(vec![1_500_000_000_000_000_001, 7_000_001_020]);
        assert_eq!(
            texts(&ns, &f(ns.data_type().clone())),
            ["2017-07-14T02:40:00.000000001", "1970-01-01T00:00:07.000001020"]
        );
        let s = TimestampSecondArray::from(vec![86400]).with_timezone("+02:00");
        assert_eq!(texts(&s, &f(s.data_type().clone())), ["1970-01-02T00:00:00Z"]);
        let d = Date32Array::from(vec![-1, 19000]);
        assert_eq!(texts(&d, &f(DataType::Date32)), ["1969-12-31", "2022-01-08"]);
        // Day 59 of a noleap year is 1 March.
        let day = 86_400_000_000;
        let t = Int64Array::from(vec![(365 * 2 + 59) * day]);
        let noleap = tessera_cells::lift::field("t", DType::Datetime(Calendar::NoLeap), false);
        assert_eq!(texts(&t, &noleap), ["1972-03-01T00:00:00"]);
        assert_eq!(type_name(&noleap), "datetime64[us, noleap]");
    }

    #[test]
    fn types_have_names_of_numpy_or_of_sql() {
        let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let list = DataType::List(Arc::new(Field::new("item", DataType::Utf8View, true)));
        for (of, name) in [
            (DataType::Int32, "int32"),
            (texts, "string"),
            (list, "string[]"),
            (DataType::Duration(TimeUnit::Millisecond), "timedelta64[ms]"),
            (DataType::Decimal128(10, 2), "decimal(10, 2)"),
            (DataType::Date32, "date"),
            (DataType::BinaryView, "binary"),
        ] {
            assert_eq!(type_name(&Field::new("x", of, true)), name);
        }
    }

    #[test]
    fn halves_are_numbers_and_maps_are_records() {
        let halves = Float16Array::from(vec![Some(half::f16::from_f32(1.5)), None]);
        let field = Field::new("h", DataType::Float16, true);
        assert_eq!(texts(&halves, &field), ["1.5", ""]);
        assert!(matches!(Column::new(&halves, &field).unwrap().cell(0), Ok(Cell::F32(_))));
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        maps.keys().append_value("k\"");
        maps.values().append_value(3);
        maps.append(true).unwrap();
        maps.append(false).unwrap();
        let maps = maps.finish();
        let field = Field::new("m", maps.data_type().clone(), true);
        assert_eq!(texts(&maps, &field), [r#"{"k\"":3}"#, ""]);
    }

    #[test]
    fn lists_and_other_types_are_read() {
        let list = ListArray::from_iter_primitive::<ty::Float64Type, _, _>([
            Some(vec![Some(1.0), None]),
            None,
        ]);
        assert_eq!(
            texts(&list, &Field::new("l", list.data_type().clone(), true)),
            ["[1.0,null]", ""]
        );
        let dict: DictionaryArray<ty::Int8Type> = ["a", "b", "a"].into_iter().collect();
        assert_eq!(texts(&dict, &Field::new("d", dict.data_type().clone(), true)), ["a", "b", "a"]);
        let part =
            |name: &str, a: ArrayRef| (Arc::new(Field::new(name, a.data_type().clone(), true)), a);
        let record = arrow::array::StructArray::from(vec![
            part("a", Arc::new(Int64Array::from(vec![1]))),
            part("b\"", Arc::new(NullArray::new(1))),
        ]);
        let shown = texts(&record, &Field::new("r", record.data_type().clone(), true));
        assert_eq!(shown, [r#"{"a":1,"b\"":null}"#]);
        let s = StringArray::from(vec!["x"]);
        assert_eq!(texts(&s, &Field::new("s", DataType::Utf8, true)), ["x"]);
    }

    #[test]
    fn null_is_null_wherever_a_type_keeps_it() {
        let is_null = |array: &dyn Array| -> Vec<bool> {
            let field = Field::new("x", array.data_type().clone(), true);
            let c = Column::new(array, &field).unwrap();
            (0..array.len()).map(|i| matches!(c.cell(i).unwrap(), Cell::Null)).collect()
        };
        // The NULL type has no bitmap.
        assert_eq!(is_null(&NullArray::new(2)), [true, true]);
        // A dictionary has its NULLs among the keys or among the values.
        let keys = Int8Array::from(vec![Some(0), Some(1), None]);
        let values = Arc::new(StringArray::from(vec![Some("a"), None]));
        assert_eq!(is_null(&DictionaryArray::new(keys, values)), [false, true, true]);
        let ends = arrow::array::Int32Array::from(vec![1, 3]);
        let runs = StringArray::from(vec![None, Some("b")]);
        let runs = arrow::array::RunArray::try_new(&ends, &runs).unwrap();
        assert_eq!(is_null(&runs), [true, false, false]);
        // Lists of NULLs.
        let field = Arc::new(Field::new("item", DataType::Null, true));
        let offsets = arrow::buffer::OffsetBuffer::from_lengths([2]);
        let list = ListArray::new(field, offsets, Arc::new(NullArray::new(2)), None);
        assert_eq!(texts(&list, &Field::new("l", list.data_type().clone(), true)), ["[null,null]"]);
    }
}
