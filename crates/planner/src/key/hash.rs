//! Hash of a value by its serde form: the same on every machine and in every version of the standard library.
//!
//! The encoding is unambiguous: numbers have a fixed width, strings and sequences a length prefix, variants and fields
//! their names. Floats are hashed by their bits, so that a NaN equals itself.

use super::StageKey;
use serde::Serialize;
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use sha2::{Digest, Sha256};
use std::fmt::Error;

/// Bytes that are buffered before hashing.
const BLOCK: usize = 4096;

/// Returns the first 128 bits of a SHA-256; `None` for a value without a serde form. Everything in a plan has one.
pub(super) fn of(value: &impl Serialize) -> Option<StageKey> {
    let mut feed = Feed { hash: Sha256::new(), block: Vec::with_capacity(BLOCK + 16) };
    value.serialize(&mut feed).ok()?;
    feed.hash.update(&feed.block);
    let digest = feed.hash.finalize();
    let mut key = [0u8; 16];
    key.copy_from_slice(digest.get(..16)?);
    Some(StageKey(key))
}

/// Returns the first 128 bits of a SHA-256 of numbers.
pub(super) fn of_numbers(numbers: &[u64]) -> [u8; 16] {
    let mut hash = Sha256::new();
    let mut block = Vec::with_capacity(BLOCK);
    for some in numbers.chunks(BLOCK / 8) {
        block.clear();
        block.extend(some.iter().flat_map(|n| n.to_le_bytes()));
        hash.update(&block);
    }
    let digest: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|i| digest[i])
}

struct Feed {
    hash: Sha256,
    block: Vec<u8>,
}

impl Feed {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= BLOCK {
            self.hash.update(&self.block);
            self.block.clear();
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), Error> {
        self.bytes(&(text.len() as u64).to_le_bytes())?;
        self.bytes(text.as_bytes())
    }

    /// Starts a sequence of known length; a sequence of unknown length cannot be hashed.
    fn start(&mut self, len: Option<usize>) -> Result<&mut Self, Error> {
        self.bytes(&(len.ok_or(Error)? as u64).to_le_bytes())?;
        Ok(self)
    }
}

macro_rules! numbers {
    ($($name:ident: $t:ty),*) => {
        $(fn $name(self, v: $t) -> Result<(), Error> {
            self.bytes(&v.to_le_bytes())
        })*
    };
}

impl<'a> Serializer for &'a mut Feed {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = &'a mut Feed;
    type SerializeTuple = &'a mut Feed;
    type SerializeTupleStruct = &'a mut Feed;
    type SerializeTupleVariant = &'a mut Feed;
    type SerializeMap = &'a mut Feed;
    type SerializeStruct = &'a mut Feed;
    type SerializeStructVariant = &'a mut Feed;

    numbers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128
    }

    fn serialize_f32(self, v: f32) -> Result<(), Error> {
        self.serialize_u32(v.to_bits())
    }

    fn serialize_f64(self, v: f64) -> Result<(), Error> {
        self.serialize_u64(v.to_bits())
    }

    fn serialize_bool(self, v: bool) -> Result<(), Error> {
        self.serialize_u8(v.into())
    }

    fn serialize_char(self, v: char) -> Result<(), Error> {
        self.serialize_u32(v.into())
    }

    fn serialize_str(self, v: &str) -> Result<(), Error> {
        self.text(v)
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<(), Error> {
        self.start(Some(v.len()))?.bytes(v)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_u8(0)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<(), Error> {
        self.bytes(&[1])?;
        v.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        Ok(())
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<(), Error> {
        self.text(name)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.text(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        v: &T,
    ) -> Result<(), Error> {
        v.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        v: &T,
    ) -> Result<(), Error> {
        self.text(variant)?;
        v.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Error> {
        self.start(len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self, Error> {
        self.start(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Self, Error> {
        self.start(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self, Error> {
        self.text(variant)?;
        self.start(Some(len))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self, Error> {
        self.start(len)
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Self, Error> {
        self.start(Some(len))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self, Error> {
        self.text(variant)?;
        self.start(Some(len))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($of:ident :: $name:ident),*) => {
        $(impl $of for &mut Feed {
            type Ok = ();
            type Error = Error;

            fn $name<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Error> {
                v.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        })*
    };
}

macro_rules! fields {
    ($($of:ident),*) => {
        $(impl $of for &mut Feed {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                v: &T,
            ) -> Result<(), Error> {
                self.text(name)?;
                v.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        })*
    };
}

elements! {
    SerializeSeq::serialize_element, SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field, SerializeTupleVariant::serialize_field
}

fields! { SerializeStruct, SerializeStructVariant }

impl SerializeMap for &mut Feed {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        key.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}
