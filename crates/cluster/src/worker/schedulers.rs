//! The servers of which a worker joins the live one.

use super::CALL;
use crate::net::{Credentials, Peers};
use crate::wire::{Advice, Watch};
use futures::future::select_all;
use std::time::Duration;

/// Interval between a supervisor's calls to a server.
const ASK: Duration = Duration::from_secs(1);
/// Upper bound on the pause of a worker that no server accepts: of one server, and of several of which one may take over
/// at any time.
const PAUSE_MAX: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(500));

/// A list of servers, and which of them is called.
pub(super) struct Schedulers<'a> {
    all: &'a [String],
    current: usize,
    /// Servers that were called since the last pause.
    called: usize,
}

impl<'a> Schedulers<'a> {
    pub(super) fn new(all: &'a [String]) -> Self {
        Schedulers { all, current: 0, called: 0 }
    }

    pub(super) fn current(&self) -> &'a str {
        self.all.get(self.current).map_or("", String::as_str)
    }

    /// Goes on to the next server; true if all were called since this last returned true.
    pub(super) fn advance(&mut self) -> bool {
        let count = self.all.len().max(1);
        self.current = (self.current + 1) % count;
        self.called += 1;
        let is_round = self.called >= count;
        if is_round {
            self.called = 0;
        }
        is_round
    }

    pub(super) fn pause_max(&self) -> Duration {
        if self.all.len() > 1 { PAUSE_MAX.1 } else { PAUSE_MAX.0 }
    }
}

/// Returns once a server wants a worker ended that does not restart by itself.
pub async fn is_to_be_ended(credentials: &Credentials, schedulers: &[String], supervisor: u64) {
    let peers = Peers::new(credentials);
    let asked =
        schedulers.iter().map(|scheduler| Box::pin(wants_end(&peers, scheduler, supervisor)));
    if schedulers.is_empty() { std::future::pending().await } else { drop(select_all(asked).await) }
}

async fn wants_end(peers: &Peers, scheduler: &str, supervisor: u64) {
    loop {
        tokio::time::sleep(ASK).await;
        // A server that does not respond requests nothing.
        let watch = Watch { supervisor };
        if let Ok(Advice::Restart) = peers.call(scheduler, "watch", &watch, CALL).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_called_once_in_a_round() {
        let all = ["a", "b", "c"].map(String::from);
        let mut schedulers = Schedulers::new(&all);
        let mut called = Vec::new();
        for _ in 0..7 {
            called.push((schedulers.current(), schedulers.advance()));
        }
        let round = [("a", false), ("b", false), ("c", true)];
        assert_eq!(called, [&round[..], &round[..], &round[..1]].concat());
        assert!(Schedulers::new(&all[..1]).advance());
    }
}
