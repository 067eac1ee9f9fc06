//! The messages of a task, put together to batches: a reader gets all pieces of a batch or none.

use super::Error;
use crate::net::Fault;
use crate::wire::from_postcard;
use bytes::Bytes;
use tessera_exec::rows::{
    ROWS_BATCH, ROWS_BATCH_BYTES_MAX, ROWS_DONE, ROWS_LACKS, ROWS_PIECE, ROWS_RUNS, RowsDone,
    RowsRuns,
};
use tessera_planner::error::Class;

/// The pieces of a batch that has begun.
#[derive(Debug)]
pub(super) struct Pieces {
    held: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
}

/// The meaning of a message.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// A batch has begun and is not complete.
    Begun,
    Batch(Vec<Bytes>),
    Runs(RowsRuns),
    /// The message too: the reader gets it.
    Done(RowsDone, Bytes),
    /// The worker does not know the stage.
    Lacks,
}

/// Why a message is of no use.
#[derive(Debug)]
pub(super) enum Unusable {
    /// The message violates the protocol.
    Broken(Fault),
    /// A batch is too large.
    Large(Error),
}

impl Default for Pieces {
    fn default() -> Self {
        Pieces { held: Vec::new(), bytes: 0, bytes_max: ROWS_BATCH_BYTES_MAX }
    }
}

impl Pieces {
    /// Adds the next message.
    pub(super) fn add(&mut self, message: Bytes) -> Result<Said, Unusable> {
        let kind = message.first().copied();
        if !matches!(kind, Some(ROWS_PIECE | ROWS_BATCH | ROWS_RUNS)) && !self.held.is_empty() {
            return Err(broken(format!(
                "a task ended after {} pieces of a batch",
                self.held.len()
            )));
        }
        match kind {
            Some(ROWS_PIECE | ROWS_BATCH) => {
                self.bytes += message.len();
                if self.bytes > self.bytes_max {
                    return Err(Unusable::Large(too_large(self.bytes, self.bytes_max)));
                }
                self.held.push(message);
                if kind == Some(ROWS_PIECE) {
                    return Ok(Said::Begun);
                }
                self.bytes = 0;
                Ok(Said::Batch(std::mem::take(&mut self.held)))
            }
            Some(ROWS_RUNS) => {
                from_postcard(&message[1..]).map(Said::Runs).map_err(Unusable::Broken)
            }
            Some(ROWS_DONE) => {
                let done = from_postcard(&message[1..]).map_err(Unusable::Broken)?;
                Ok(Said::Done(done, message))
            }
            Some(ROWS_LACKS) => Ok(Said::Lacks),
            Some(kind) => Err(broken(format!("a message of rows begins with {kind}"))),
            None => Err(broken("a message of rows is empty".into())),
        }
    }
}

fn broken(what: String) -> Unusable {
    Unusable::Broken(Fault::Broken(what))
}

fn too_large(bytes: usize, bytes_max: usize) -> Error {
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    let message = format!(
        "a worker sent {} MiB or more for one batch of rows (limit {} MiB)",
        mib(bytes),
        mib(bytes_max)
    );
    let hint = "shorten large texts before they are joined or grouped, or let the server compute the rows \
                (`SET tessera.spread = 'none'`)";
    Error::reported("too_large", Class::Limit, message, Some(hint.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn message(bytes: &[u8]) -> Bytes {
        Bytes::copy_from_slice(bytes)
    }

    #[test]
    fn a_batch_is_whole() {
        let mut pieces = Pieces::default();
        let (first, second, last) = (message(&[0, 7]), message(&[0, 8]), message(&[1, 9]));
        assert_eq!(pieces.add(first.clone()).unwrap(), Said::Begun);
        assert_eq!(pieces.add(second.clone()).unwrap(), Said::Begun);
        let batch = Said::Batch(vec![first, second, last.clone()]);
        assert_eq!(pieces.add(last.clone()).unwrap(), batch);
        assert_eq!(pieces.add(last.clone()).unwrap(), Said::Batch(vec![last]));
        assert_eq!(pieces.add(message(&[4])).unwrap(), Said::Lacks);
    }

    #[test]
    fn messages_that_violate_the_protocol_are_refused() {
        for wrong in [&b""[..], &[5], &[3], &[2, 1]] {
            let refused = Pieces::default().add(message(wrong)).unwrap_err();
            assert!(matches!(refused, Unusable::Broken(Fault::Broken(_))), "{wrong:?}");
        }
        let mut pieces = Pieces::default();
        pieces.add(message(&[0, 1])).unwrap();
        let done = postcard::to_extend(&RowsDone::default(), vec![ROWS_DONE]).unwrap();
        assert!(matches!(pieces.add(done.into()).unwrap_err(), Unusable::Broken(_)));
    }

    #[test]
    fn a_batch_has_a_bound() {
        let mut pieces = Pieces { bytes_max: 2 << 20, ..Pieces::default() };
        let piece = Bytes::from(vec![0; 1 << 20]);
        for _ in 0..2 {
            assert_eq!(pieces.add(piece.clone()).unwrap(), Said::Begun);
        }
        let Unusable::Large(error) = pieces.add(piece).unwrap_err() else { panic!("no error") };
        assert_eq!(error.code(), "too_large");
        let told = error.to_string();
        assert!(told.contains("3 MiB") && told.contains("limit 2 MiB"), "{told}");
    }
}
