//! The parties that a worker can reach, and how it fetches the chunks of others.
//!
//! ```text
//!   worker ──✂──▶ worker that has the chunk      a firewall or a lost route, in one direction or both
//!      └─▶ server ─▶ that worker                 relays chunks; the server reaches every worker, or the worker is lost
//! ```
//! A cut route is remembered, so that it costs a timeout only once, and reported to the server with each heartbeat. It
//! is probed again from time to time, concurrently with fetches.

use crate::net::{Fault, Peers};
use crate::shelf::{IDLE, written};
use crate::wire::ChunkTicket;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_storage::lock;

const PROBE: Duration = Duration::from_millis(1500);
/// Interval between probes of a cut route.
const LOOK: Duration = Duration::from_secs(5);
/// A route that was not needed for this long is forgotten.
const UNUSED: Duration = Duration::from_secs(120);

/// The route that a chunk took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Directly from its holder.
    Straight,
    /// Relayed by the server.
    ByServer,
}

#[derive(Debug)]
struct Cut {
    wanted: Instant,
    looked: Instant,
}

/// The parties that a worker cannot reach, by address.
#[derive(Debug)]
pub(crate) struct Reach {
    peers: Peers,
    cuts: Mutex<BTreeMap<String, Cut>>,
}

impl Reach {
    pub(crate) fn new(peers: Peers) -> Arc<Self> {
        Arc::new(Reach { peers, cuts: Mutex::default() })
    }

    /// Fetches an object of at most `limit` bytes from a party; through the server if the route to the party is cut.
    ///
    /// # Errors
    /// Errors of [`Peers::object`].
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
            // A party that responds may have had no memory for the chunk, or may be leaving.
            if !is_lost || server.is_none() || self.peers.answers(party, PROBE).await {
                return straight.map(|object| (object, Way::Straight));
            }
        }
        let asked = ChunkTicket { at: Some(party.into()), ..ticket.clone() };
        let server = server.unwrap_or_default();
        let object = self.peers.object(server, written(&asked), limit, IDLE).await?;
        // If the server cannot reach the party either, the party is lost.
        self.cut(party);
        Ok((object, Way::ByServer))
    }

    fn is_cut(&self, party: &str) -> bool {
        match lock(&self.cuts).get_mut(party) {
            Some(cut) => {
                cut.wanted = Instant::now();
                true
            }
            None => false,
        }
    }

    fn cut(&self, party: &str) {
        let now = Instant::now();
        lock(&self.cuts).entry(party.to_owned()).or_insert_with(|| {
            tracing::warn!(party, "it is not reached; the server passes its chunks on");
            Cut { wanted: now, looked: now }
        });
    }

    /// The unreachable parties. Starts probes that are due.
    pub(crate) fn apart(self: &Arc<Self>) -> Vec<String> {
        let now = Instant::now();
        let mut cuts = lock(&self.cuts);
        cuts.retain(|_, cut| now.duration_since(cut.wanted) < UNUSED);
        for (party, cut) in cuts.iter_mut() {
            if now.duration_since(cut.looked) < LOOK {
                continue;
            }
            cut.looked = now;
            let (reach, party) = (self.clone(), party.clone());
            tokio::spawn(async move {
                if reach.peers.answers(&party, PROBE).await {
                    // The old connection may still wait for its next retry.
                    reach.peers.forget(&party);
                    lock(&reach.cuts).remove(&party);
                    tracing::info!(party, "it is reached again");
                }
            });
        }
        cuts.keys().cloned().collect()
    }
}
