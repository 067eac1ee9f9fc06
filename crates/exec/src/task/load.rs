//! Reading sources.

use super::{Operand, Origin, Resident, gather};
use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::schedule::Prepared;
use crate::source::{ArrayReader, Fetched};
use arrow::buffer::Buffer;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::plan::Task;
use tessera_planner::region::Region;
use tessera_planner::tile::{for_each_index, resident_chunk};

/// The asynchronous half of a read.
pub(super) fn fetch(
    reader: Arc<ArrayReader>,
    region: Region,
) -> BoxFuture<'static, Result<Prepared, Error>> {
    async move {
        let fetched = reader.fetch(&region).await?;
        Ok(Box::new(fetched) as Prepared)
    }
    .boxed()
}

/// A field over bytes of the plan, copied once for alignment.
pub(super) fn constant(dtype: DType, bytes: &[u8]) -> Result<Field, Error> {
    Field::new(dtype, Buffer::from_slice_ref(bytes))
}

pub(super) fn run(
    op: &Operand<'_>,
    origin: &Origin,
    prepared: Option<Prepared>,
) -> Result<Vec<Chunk>, Error> {
    let region = op.tiling.load_region(op.id, op.index);
    match origin {
        Origin::Stored(reader) => {
            let fetched = match prepared {
                Some(p) => *p.downcast::<Fetched>().map_err(|_| Error::Broken {
                    what: "a read was prepared by somebody else".into(),
                })?,
                // Local files are read without waiting, so the future is ready at its first poll.
                None => reader.fetch(&region).now_or_never().ok_or_else(|| Error::Broken {
                    what: format!("the read of {region} of a local file waits"),
                })??,
            };
            op.cx.cancel.check()?;
            let mut buffers = op.buffers(0);
            reader.decode(fetched, &region, buffers[0].as_mut_slice())?;
            Ok(vec![op.chunk(0, buffers)?])
        }
        Origin::Resident(array) => resident(op, array, &region),
    }
}

/// A box of an array in memory: the chunk itself where it is exactly one, else a copy.
fn resident(op: &Operand<'_>, array: &Resident, region: &Region) -> Result<Vec<Chunk>, Error> {
    let chunk = |index: &[u64]| {
        array.chunks.get(array.grid.ravel(index) as usize).ok_or_else(|| Error::Broken {
            what: format!("chunk {index:?} of a tensor in memory is missing"),
        })
    };
    let Task::Load { source, .. } = &op.stage.task else {
        return Err(Error::Broken { what: "a read of a stage that loads nothing".into() });
    };
    if let Some(index) = resident_chunk(source, region) {
        let whole = chunk(&index)?;
        return Ok(vec![Chunk::new(whole.shape(), whole.fields().iter().cloned())?]);
    }
    let mut buffers = op.buffers(0);
    let mut result = Ok(());
    for_each_index(&array.grid.overlapping(region), &mut |index| {
        if result.is_ok() {
            let from = array.grid.region(index);
            result = chunk(index).and_then(|c| gather::copy_common(c, &from, region, &mut buffers));
        }
    });
    result?;
    Ok(vec![op.chunk(0, buffers)?])
}
