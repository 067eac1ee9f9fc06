//! Backoff against guessing tokens: each further wrong token doubles the wait.
//!
//! The first wrong tokens of an address are free, for typos. After them no token of that address is checked until a
//! wait is over, not even the right one: a response would reveal that it is right. A right token resets the count.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tessera_engine::error::Error;
use tessera_storage::lock;

/// Number of wrong tokens without a wait.
const FREE: u32 = 10;
/// Upper bound on the wait: the exponent of a power of two, in seconds.
const LONGEST: u32 = 5;
/// Wrong tokens of an address are forgotten after this time without another.
const FORGET: Duration = Duration::from_secs(600);
/// Upper bound on remembered addresses; beyond it the oldest are forgotten.
const ADDRESSES_MAX: usize = 4096;

/// The origin of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer(Option<IpAddr>);

impl Peer {
    /// The peer of an address. IPv6 addresses count by their /64 network, because a client has a whole network.
    pub(super) fn new(ip: IpAddr) -> Self {
        Peer(Some(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
            ip => ip,
        }))
    }
}

#[derive(Debug, Default)]
pub(super) struct Brake(Mutex<BTreeMap<Peer, Tries>>);

#[derive(Debug, Clone, Copy)]
struct Tries {
    wrong: u32,
    last: Instant,
}

impl Tries {
    /// The time left during which tokens are not checked.
    fn wait(&self, now: Instant) -> Option<Duration> {
        let over = self.wrong.checked_sub(FREE)?;
        let until = self.last + Duration::from_secs(1 << over.min(LONGEST));
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

impl Brake {
    /// Checks a token, unless the peer has to wait.
    ///
    /// # Errors
    /// [`Error::TooManyTries`] if it has to wait: then `is_right` was not called.
    pub(super) fn attempt(
        &self,
        peer: Peer,
        is_right: impl FnOnce() -> bool,
    ) -> Result<bool, Error> {
        self.attempt_at(peer, is_right, Instant::now())
    }

    fn attempt_at(
        &self,
        peer: Peer,
        is_right: impl FnOnce() -> bool,
        now: Instant,
    ) -> Result<bool, Error> {
        let mut all = lock(&self.0);
        let known = all.get(&peer).copied().filter(|t| now.duration_since(t.last) < FORGET);
        if let Some(wait) = known.and_then(|t| t.wait(now)) {
            return Err(Error::TooManyTries { wait_s: wait.as_secs_f64().ceil() as u64 });
        }
        if is_right() {
            all.remove(&peer);
            return Ok(true);
        }
        let wrong = known.map_or(0, |t| t.wrong).saturating_add(1);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&peer) {
            let oldest = all.iter().min_by_key(|(_, t)| t.last).map(|(p, _)| *p);
            oldest.and_then(|p| all.remove(&p));
        }
        all.insert(peer, Tries { wrong, last: now });
        Ok(false)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn guessing_takes_longer_and_longer() {
        let brake = Brake::default();
        let peer = |ip: &str| Peer::new(ip.parse().unwrap());
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let (bad, good) = (peer("10.0.0.1"), peer("10.0.0.2"));
        for _ in 0..FREE {
            assert!(!brake.attempt_at(bad, || false, at(0)).unwrap());
        }
        let mut waits = Vec::new();
        let mut now = 0;
        for _ in 0..8 {
            let Err(Error::TooManyTries { wait_s }) = brake.attempt_at(bad, || true, at(now))
            else {
                unreachable!("it was looked at")
            };
            waits.push(wait_s);
            now += wait_s;
            assert!(!brake.attempt_at(bad, || false, at(now)).unwrap());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32, 32]);
        // Other peers do not wait, and the wait ends; addresses of one network count together.
        assert!(brake.attempt_at(good, || true, at(now)).unwrap());
        assert!(brake.attempt_at(bad, || true, at(now + 32)).unwrap());
        assert!(!brake.attempt_at(bad, || false, at(now + 32)).unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:0:1"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), bad);
    }

    #[test]
    fn the_memory_of_failed_attempts_is_bounded() {
        let brake = Brake::default();
        let start = Instant::now();
        for i in 0..3 * ADDRESSES_MAX as u32 {
            let peer = Peer::new(IpAddr::V4(i.into()));
            let now = start + Duration::from_millis(i.into());
            assert!(!brake.attempt_at(peer, || false, now).unwrap());
        }
        assert_eq!(brake.0.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
