//! Which parties a worker reaches, and how it has their chunks if it does not.
//!
//! ```text
//!   worker ──✂──▶ worker that has the chunk      a firewall, a route that is gone, one way or both
//!      └─▶ server ─▶ that worker                 the server reaches every worker, or it is lost: it passes the chunk on
//! ```
//! That a way is cut is remembered, so that it costs time once, and told to the server with each beat. It is looked at
//! again from time to time, beside what is fetched.

use crate::net::{Fault, Peers};
use crate::shelf::{IDLE, written};
use crate::wire::ChunkTicket;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a party has to show that it can be reached.
const PROBE: Duration = Duration::from_millis(1500);
/// How often a way that is cut is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// A way that nobody wanted for so long is forgotten.
const UNUSED: Duration = Duration::from_secs(120);

/// How a chunk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From whoever has it.
    Straight,
    /// By the server.
    ByServer,
}

/// A way that is cut.
#[derive(Debug)]
struct Cut {
    wanted: Instant,
    looked: Instant,
}

/// The parties that a worker does not reach, by address.
#[derive(Debug)]
pub(crate) struct Reach {
    peers: Peers,
    cuts: Mutex<BTreeMap<String, Cut>>,
}

impl Reach {
    pub(crate) fn new(peers: Peers) -> Arc<Self> {
        Arc::new(Reach { peers, cuts: Mutex::default() })
    }

    fn cuts(&self) -> MutexGuard<'_, BTreeMap<String, Cut>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object of at most `limit` bytes from a party; by the server if the way to the party is cut.
    ///
    /// # Errors
    /// As [`Peers::object`].
    pub(crate) async fn object(
        &self,
        party: &str,
        ticket: &ChunkTicket,
        limit: u64,
        server: Option<&str>,
    ) -> Result<(Bytes, Way), Fault> {
        let server = server.filter(|server| *server != party);
        if server.is_none() || !self.is_cut(party) {
            let straight = self.peers.object(party, written(ticket), limit, IDLE).await;
            let is_lost = matches!(straight, Err(Fault::Unreachable(_)));
            // Whoever answers may have had no memory for it, or may be about to leave.
            if !is_lost || server.is_none() || self.peers.answers(party, PROBE).await {
                return straight.map(|object| (object, Way::Straight));
            }
        }
        let asked = ChunkTicket { at: Some(party.into()), ..ticket.clone() };
        let server = server.unwrap_or_default();
        let object = self.peers.object(server, written(&asked), limit, IDLE).await?;
        // If the server does not reach it either, it is lost.
        self.cut(party);
        Ok((object, Way::ByServer))
    }

    fn is_cut(&self, party: &str) -> bool {
        match self.cuts().get_mut(party) {
            Some(cut) => {
                cut.wanted = Instant::now();
                true
            }
            None => false,
        }
    }

    fn cut(&self, party: &str) {
        let now = Instant::now();
        self.cuts().entry(party.to_owned()).or_insert_with(|| {
            tracing::warn!(party, "it is not reached; the server passes its chunks on");
            Cut { wanted: now, looked: now }
        });
    }

    /// The parties that are not reached. They are looked for again when it is time.
    pub(crate) fn apart(self: &Arc<Self>) -> Vec<String> {
        let now = Instant::now();
        let mut cuts = self.cuts();
        cuts.retain(|_, cut| now.duration_since(cut.wanted) < UNUSED);
        for (party, cut) in cuts.iter_mut() {
            if now.duration_since(cut.looked) < LOOK {
                continue;
            }
            cut.looked = now;
            let (reach, party) = (self.clone(), party.clone());
            tokio::spawn(async move {
                if reach.peers.answers(&party, PROBE).await {
                    // The connection of before may wait for its next try.
                    reach.peers.forget(&party);
                    reach.cuts().remove(&party);
                    tracing::info!(party, "it is reached again");
                }
            });
        }
        cuts.keys().cloned().collect()
    }
}
