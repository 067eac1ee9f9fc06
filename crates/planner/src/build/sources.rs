//! Constructors of nodes that read a source or store values, and the decoding of raw cells.

use super::{Builder, Result, checked_chunks};
use crate::catalog::{Decode, SourceRef};
use crate::dtype::DType;
use crate::grid::Grid;
use crate::ir::{ConstArray, MapOp, NodeId, Op};
use crate::program::ScalarOp;
use crate::region::Region;
use crate::scalar::Scalar;
use std::sync::Arc;

impl Builder {
    /// Raw cells of a stored array: `[shape of the source]`.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::error::Error::TooLarge).
    pub fn load(&mut self, source: Arc<SourceRef>) -> Result<NodeId> {
        let region = Region::whole(&source.shape);
        self.load_region(source, region)
    }

    /// Raw cells of a region of a stored array. Small source chunks are grouped towards the configured size. That size
    /// applies to whole chunks, not to their parts in the region.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::error::Error::TooLarge).
    pub fn load_region(&mut self, source: Arc<SourceRef>, region: Region) -> Result<NodeId> {
        let slice = source.grid.slice(&region);
        // A tensor in memory needs no decoding.
        let stored = (!source.is_resident()).then_some(&source.grid);
        let grid = slice.grouped(stored, source.dtype.size(), self.config.chunk_bytes_target);
        let (shape, dtype, nullable) = (region.shape(), source.dtype, source.nullable);
        self.push(Op::Load { source, region }, &[], shape, dtype, nullable, grid)
    }

    /// Decodes the raw cells of an array: masks, then unpacking or time.
    ///
    /// # Errors
    /// [`Error::DTypes`](crate::error::Error::DTypes) for rules that do not fit the stored type.
    pub fn decode(&mut self, raw: NodeId, decode: &Decode) -> Result<NodeId> {
        let dtype = self.dtype(raw);
        let mut keep: Option<NodeId> = None;
        let mut require = |b: &mut Builder, cond: NodeId| -> Result<()> {
            keep = Some(match keep {
                None => cond,
                Some(k) => b.map(ScalarOp::And, &[k, cond])?,
            });
            Ok(())
        };
        for m in &decode.missing {
            if dtype.is_float() && m.as_f64().is_nan() {
                let nan = self.map(ScalarOp::IsNan, &[raw])?;
                let ok = self.map(ScalarOp::Not, &[nan])?;
                require(self, ok)?;
            } else {
                let m = self.constant(m.cast(dtype))?;
                let ok = self.map(ScalarOp::Ne, &[raw, m])?;
                require(self, ok)?;
            }
        }
        for (bound, beyond) in [(decode.valid_min, ScalarOp::Lt), (decode.valid_max, ScalarOp::Gt)]
        {
            if let Some(v) = bound {
                let v = self.constant(v.cast(dtype))?;
                // NaN is a value: it exceeds no bound.
                let out = self.map(beyond, &[raw, v])?;
                let ok = self.map(ScalarOp::Not, &[out])?;
                require(self, ok)?;
            }
        }
        if let Some(valid) = &decode.valid {
            let ok = self.load(valid.clone())?;
            require(self, ok)?;
        }
        let mut value = raw;
        if let Some(u) = decode.unpack {
            value = self.cast(value, u.dtype)?;
            if u.scale != 1.0 {
                let s = self.constant(Scalar::from_f64(u.dtype, u.scale))?;
                value = self.map(ScalarOp::Mul, &[value, s])?;
            }
            if u.offset != 0.0 {
                let o = self.constant(Scalar::from_f64(u.dtype, u.offset))?;
                value = self.map(ScalarOp::Add, &[value, o])?;
            }
        }
        if let Some(t) = decode.time {
            // Whole units are exact integer arithmetic; fractions are rounded to the microsecond. Readers reject values
            // out of range, so nothing overflows here.
            let us = if self.dtype(value).is_float() {
                let v = self.cast(value, DType::Float64)?;
                let unit = self.constant(Scalar::f64(t.unit_ns as f64 / 1000.0))?;
                let v = self.map(ScalarOp::Mul, &[v, unit])?;
                let v = self.map(ScalarOp::Rint, &[v])?;
                self.cast(v, DType::Int64)?
            } else {
                let v = self.cast(value, DType::Int64)?;
                match t.unit_ns {
                    1 => {
                        let unit = self.constant(Scalar::i64(1000))?;
                        self.map(ScalarOp::FloorDiv, &[v, unit])?
                    }
                    ns => {
                        let unit = self.constant(Scalar::i64(ns / 1000))?;
                        self.map(ScalarOp::Mul, &[v, unit])?
                    }
                }
            };
            let origin = self.constant(Scalar::i64(t.origin_us))?;
            let us = self.map(ScalarOp::Add, &[us, origin])?;
            value = self.cast(us, DType::Datetime(t.calendar))?;
        }
        match keep {
            None => Ok(value),
            Some(k) => self.map_op(MapOp::Mask, &[value, k]),
        }
    }

    /// An array stored in the plan, as one chunk.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::error::Error::TooLarge).
    pub fn array(&mut self, value: ConstArray) -> Result<NodeId> {
        let (shape, dtype, nullable) = (value.shape.clone(), value.dtype, value.valid.is_some());
        let grid = Grid::single(&shape);
        self.push(Op::Const(value), &[], shape, dtype, nullable, grid)
    }

    /// One value, 0-d.
    ///
    /// # Errors
    /// Never for a 0-d value; the signature is that of all nodes.
    pub fn constant(&mut self, value: Scalar) -> Result<NodeId> {
        self.array(ConstArray::new(value.dtype(), &[], &[Some(value)]))
    }

    /// A masked 0-d value of a type.
    ///
    /// # Errors
    /// Never for a 0-d value; the signature is that of all nodes.
    pub fn null(&mut self, dtype: DType) -> Result<NodeId> {
        self.array(ConstArray::new(dtype, &[], &[None]))
    }

    /// A value repeated over a shape, in chunks of shape `chunks` if given.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::error::Error::TooLarge), [`Error::Range`](crate::error::Error::Range) for bad chunks.
    pub fn full(
        &mut self,
        value: Option<Scalar>,
        dtype: DType,
        shape: &[u64],
        chunks: Option<&[u64]>,
    ) -> Result<NodeId> {
        let one = match value {
            Some(v) => self.constant(v.cast(dtype))?,
            None => self.null(dtype)?,
        };
        let id = self.broadcast_to(one, shape)?;
        match chunks {
            Some(c) => self.rechunk(id, c),
            None => Ok(id),
        }
    }

    /// Row-major numbers of the cells of a shape: `int64`, in chunks of shape `chunks` if given.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::error::Error::TooLarge), [`Error::Range`](crate::error::Error::Range) for bad chunks.
    pub fn iota(&mut self, shape: &[u64], chunks: Option<&[u64]>) -> Result<NodeId> {
        let grid = match chunks {
            Some(c) => checked_chunks(shape, c)?,
            None => self.auto_grid(shape, DType::Int64),
        };
        self.push(Op::Iota, &[], shape.into(), DType::Int64, false, grid)
    }
}
