//! A sink that forwards chunks of results as pieces.
//!
//! The channel is unbounded: chunks in transit are charged to the quota, and because the sink drains, a
//! plan short of memory waits for its reader.

use super::Piece;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tessera_exec::chunk::Chunk;
use tessera_exec::error::Error;
use tessera_exec::schedule::Sink;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::region::Region;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The sending end, for the runtime.
#[derive(Debug)]
pub struct PieceSink {
    sender: UnboundedSender<Piece>,
}

/// The receiving end, for a table. It ends when every sink is dropped.
#[derive(Debug)]
pub struct Pieces {
    receiver: UnboundedReceiver<Piece>,
}

impl PieceSink {
    /// A sink and its reader.
    pub fn new() -> (Arc<PieceSink>, Pieces) {
        let (sender, receiver) = unbounded_channel();
        (Arc::new(PieceSink { sender }), Pieces { receiver })
    }
}

impl Sink for PieceSink {
    fn chunk(
        &self,
        result: usize,
        _: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let start = region.start.first().copied().unwrap_or_default();
        let piece = Piece { root: result, start, cells: one_nan(chunk.to_array()?) };
        // Without a receiver the statement is about to be cancelled.
        let _ = self.sender.send(piece);
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        false
    }
}

/// Clears the sign of NaN: Arrow sorts by bits, and SQL has one NaN, above all numbers.
fn one_nan(cells: ArrayRef) -> ArrayRef {
    match cells.data_type() {
        DataType::Float64 => {
            let x = cells.as_primitive::<Float64Type>();
            if !x.values().iter().any(|v| v.is_nan() && v.is_sign_negative()) {
                return cells;
            }
            Arc::new(x.unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v }))
        }
        DataType::Float32 => {
            let x = cells.as_primitive::<Float32Type>();
            if !x.values().iter().any(|v| v.is_nan() && v.is_sign_negative()) {
                return cells;
            }
            Arc::new(x.unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v }))
        }
        _ => cells,
    }
}

impl Stream for Pieces {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(cx)
    }
}
