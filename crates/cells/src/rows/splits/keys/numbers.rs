//! Keys of fixed width as numbers that compare as they do.

use super::super::radix::Radix;
use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{self as t, DataType, TimeUnit};
use datafusion::common::{Result, internal_err};

/// A number that keys are appended to.
pub(super) trait Number: Radix {
    /// Appends the lower `bits` bits of a value.
    fn append(&mut self, bits: u32, value: u64);
}

impl Number for u64 {
    fn append(&mut self, bits: u32, value: u64) {
        *self = self.checked_shl(bits).unwrap_or(0) | value;
    }
}

impl Number for u128 {
    fn append(&mut self, bits: u32, value: u64) {
        *self = (*self << bits) | u128::from(value);
    }
}

/// Bits of a key without the one for NULL; `None` if it is not a number.
pub(super) fn bits(data_type: &DataType) -> Option<u32> {
    Some(match data_type {
        DataType::Boolean => 1,
        DataType::Int8 | DataType::UInt8 => 8,
        DataType::Int16 | DataType::UInt16 => 16,
        DataType::Int32 | DataType::UInt32 | DataType::Float32 | DataType::Date32 => 32,
        DataType::Int64 | DataType::UInt64 | DataType::Float64 | DataType::Date64 => 64,
        DataType::Timestamp(..) => 64,
        _ => return None,
    })
}

/// Appends a key's column to the numbers of its rows.
pub(super) fn append<K: Number>(
    numbers: &mut [K],
    column: &ArrayRef,
    options: SortOptions,
    bits: u32,
    is_nullable: bool,
) -> Result<()> {
    if !is_nullable && column.null_count() > 0 {
        return internal_err!("a sort key without NULLs has {}", column.null_count());
    }
    let signed32 = |v: i32| u64::from(v as u32 ^ 1 << 31);
    let signed64 = |v: i64| v as u64 ^ 1 << 63;
    let mut with = Appended { numbers, column, options, bits, is_nullable };
    match column.data_type() {
        DataType::Boolean => {
            let values = column.as_boolean().clone();
            with.all(|i| u64::from(values.value(i)));
        }
        DataType::Int8 => with.of::<t::Int8Type>(|v| u64::from(v as u8 ^ 1 << 7)),
        DataType::UInt8 => with.of::<t::UInt8Type>(u64::from),
        DataType::Int16 => with.of::<t::Int16Type>(|v| u64::from(v as u16 ^ 1 << 15)),
        DataType::UInt16 => with.of::<t::UInt16Type>(u64::from),
        DataType::Int32 => with.of::<t::Int32Type>(signed32),
        DataType::Date32 => with.of::<t::Date32Type>(signed32),
        DataType::UInt32 => with.of::<t::UInt32Type>(u64::from),
        DataType::Float32 => with.of::<t::Float32Type>(|v| {
            let bits = v.to_bits();
            u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
        }),
        DataType::Int64 => with.of::<t::Int64Type>(signed64),
        DataType::Date64 => with.of::<t::Date64Type>(signed64),
        DataType::UInt64 => with.of::<t::UInt64Type>(|v| v),
        DataType::Float64 => with.of::<t::Float64Type>(|v| {
            let bits = v.to_bits();
            if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
        }),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => with.of::<t::TimestampSecondType>(signed64),
            TimeUnit::Millisecond => with.of::<t::TimestampMillisecondType>(signed64),
            TimeUnit::Microsecond => with.of::<t::TimestampMicrosecondType>(signed64),
            TimeUnit::Nanosecond => with.of::<t::TimestampNanosecondType>(signed64),
        },
        other => return internal_err!("{other} is not a number of a sort"),
    }
    Ok(())
}

struct Appended<'a, K> {
    numbers: &'a mut [K],
    column: &'a ArrayRef,
    options: SortOptions,
    bits: u32,
    is_nullable: bool,
}

impl<K: Number> Appended<'_, K> {
    fn of<T: ArrowPrimitiveType>(&mut self, number: impl Fn(T::Native) -> u64) {
        let values = self.column.as_primitive::<T>().values().clone();
        self.all(|i| number(values[i]));
    }

    fn all(&mut self, value: impl Fn(usize) -> u64) {
        let SortOptions { descending, nulls_first } = self.options;
        let turned = if descending { u64::MAX >> (64 - self.bits) } else { 0 };
        let nulls = self.column.nulls();
        for (i, number) in self.numbers.iter_mut().enumerate() {
            let is_null = nulls.is_some_and(|nulls| nulls.is_null(i));
            if self.is_nullable {
                number.append(1, u64::from(is_null != nulls_first));
            }
            number.append(self.bits, if is_null { 0 } else { value(i) ^ turned });
        }
    }
}
