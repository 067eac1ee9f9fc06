//! The chunks and shards of a store: from options and the grid of a result.

use super::Codec;
use crate::sink::SinkError;
use crate::source::CHUNK_BYTES_MAX;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::Dims;

/// Format, compression, chunks and shards of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Zarr's format: 2 or 3.
    pub format: u8,
    /// Compression of chunks.
    pub codec: Codec,
    /// Lengths of chunks; `None` for those of the computed result.
    pub chunks: Option<Vec<u64>>,
    /// Lengths of shards, each a multiple of the chunk's; one object holds a shard.
    pub shards: Option<Vec<u64>>,
    /// In a warehouse: chunks end with their checksum, and a manifest lists all files ([`crate::manifest`]). For Zarr
    /// v3 without shards.
    pub listed: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout { format: 3, codec: Codec::default(), chunks: None, shards: None, listed: false }
    }
}

/// Lengths of chunks, and of shards if there are any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// Lengths of a chunk, the unit of decoding.
    pub chunks: Dims,
    /// Lengths of an object, if it is larger than a chunk.
    pub shards: Option<Dims>,
}

impl Shards {
    /// Lengths of an object, which the plan computes at once.
    pub fn object(&self) -> &Dims {
        self.shards.as_ref().unwrap_or(&self.chunks)
    }

    /// The grid that a plan's result must have.
    pub fn grid(&self, shape: &[u64]) -> Grid {
        Grid::regular(shape, self.object())
    }
}

impl Layout {
    /// The layout of the tensors of a warehouse.
    pub fn warehouse() -> Self {
        Layout { listed: true, ..Layout::default() }
    }

    /// Returns the chunks of one tensor that is computed on `grid`. No length exceeds that of its axis.
    ///
    /// # Errors
    /// Lengths that do not fit the tensor or each other, a chunk larger than readers accept, shards in Zarr v2.
    pub fn fit(
        &self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        grid: &Grid,
    ) -> Result<Shards, SinkError> {
        let fail = |option, reason: String, hint: Option<String>| {
            Err(SinkError::Option { option, reason, hint })
        };
        for (option, given) in [("chunks", &self.chunks), ("shards", &self.shards)] {
            let Some(given) = given else { continue };
            if given.len() != shape.len() {
                return fail(
                    option,
                    format!(
                        "{given:?} has {} lengths, `{name}` has {} dimensions",
                        given.len(),
                        shape.len()
                    ),
                    Some(
                        "give one length for each dimension, or use rechunk() in the query".into(),
                    ),
                );
            }
            if given.contains(&0) {
                return fail(option, format!("{given:?} has a length of 0"), None);
            }
        }
        let asked: Dims = match &self.chunks {
            Some(c) => c.iter().copied().collect(),
            None => grid.axes.iter().take(shape.len()).map(|a| a.chunk).collect(),
        };
        let clamp = |n: u64, len: u64| n.clamp(1, len.max(1));
        let chunks: Dims = asked.iter().zip(shape).map(|(&c, &n)| clamp(c, n)).collect();
        let mut shards = None;
        if let Some(given) = &self.shards {
            if self.format == 2 {
                return fail(
                    "shards",
                    "Zarr v2 has no shards".into(),
                    Some("write zarr_format 3".into()),
                );
            }
            let mut out = Dims::new();
            for (a, (&s, &c)) in given.iter().zip(&chunks).enumerate() {
                // A shard beyond the end of an axis holds all its chunks.
                if s >= shape[a] {
                    out.push(shape[a].max(1).div_ceil(c) * c);
                } else if s % c == 0 {
                    out.push(s);
                } else {
                    return fail(
                        "shards",
                        format!(
                            "{s} along axis {a} of `{name}` is not a multiple of the chunk's length {c}"
                        ),
                        Some(format!(
                            "the chunks are {chunks:?}; set them with OPTIONS (chunks '[…]')"
                        )),
                    );
                }
            }
            shards = Some(out);
        }
        let out = Shards { chunks, shards };
        let bytes =
            |d: &Dims| d.iter().fold(dtype.size() as u128, |n, &x| n.saturating_mul(x.into()));
        for (option, dims) in [("chunks", &out.chunks), ("shards", out.object())] {
            if bytes(dims) > u128::from(CHUNK_BYTES_MAX) {
                return fail(
                    option,
                    format!(
                        "{dims:?} of {dtype} has {} bytes, the most is {CHUNK_BYTES_MAX}",
                        bytes(dims)
                    ),
                    Some("write smaller ones: OPTIONS (chunks '[…]')".into()),
                );
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_shards_fit_the_tensor() {
        let fit = |chunks: Option<&[u64]>, shards: Option<&[u64]>, shape: &[u64]| {
            let layout = Layout {
                chunks: chunks.map(<[u64]>::to_vec),
                shards: shards.map(<[u64]>::to_vec),
                ..Layout::default()
            };
            layout.fit("x", shape, DType::Float32, &Grid::single(shape))
        };
        let of = |s: Shards| (s.chunks.to_vec(), s.shards.map(|d| d.to_vec()));
        assert_eq!(of(fit(None, None, &[5, 0]).unwrap()), (vec![5, 1], None));
        assert_eq!(of(fit(Some(&[2, 9]), None, &[5, 4]).unwrap()), (vec![2, 4], None));
        assert_eq!(
            of(fit(Some(&[2, 9]), Some(&[4, 9]), &[5, 4]).unwrap()),
            (vec![2, 4], Some(vec![4, 4]))
        );
        assert_eq!(
            of(fit(Some(&[2, 3]), Some(&[8, 8]), &[5, 4]).unwrap()),
            (vec![2, 3], Some(vec![6, 6]))
        );
        for (chunks, shards) in [
            (Some(&[2][..]), None),
            (Some(&[0, 2][..]), None),
            (Some(&[2, 2][..]), Some(&[3, 2][..])),
            (None, Some(&[1][..])),
        ] {
            assert_eq!(fit(chunks, shards, &[5, 4]).unwrap_err().code(), "invalid_option");
        }
        let huge = fit(None, None, &[1 << 20, 1 << 20]).unwrap_err();
        assert!(huge.to_string().contains("2147483648"), "{huge}");
    }
}
