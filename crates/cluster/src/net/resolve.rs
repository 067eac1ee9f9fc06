//! Addresses that a test assigns to names.
//!
//! `TESSERA_RESOLVE='w1.example=127.0.0.1,w2.example=127.0.0.1'` makes a debug build connect to these addresses when it
//! calls a party by one of these names, without asking the system. The certificate of the party is verified for the
//! name. A release build asks the system for every name.

use super::Fault;
use std::net::IpAddr;

/// The address of a name; `None` if the system is to be asked for it.
///
/// # Errors
/// A syntax error in `TESSERA_RESOLVE`.
#[inline(always)]
pub(super) fn address_of(host: &str) -> Result<Option<IpAddr>, Fault> {
    #[cfg(debug_assertions)]
    return debug::address_of(host);
    #[cfg(not(debug_assertions))]
    {
        let _ = host;
        Ok(None)
    }
}

#[cfg(debug_assertions)]
mod debug {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::OnceLock;

    type Names = Result<BTreeMap<String, IpAddr>, Fault>;

    pub(super) fn address_of(host: &str) -> Result<Option<IpAddr>, Fault> {
        static NAMES: OnceLock<Names> = OnceLock::new();
        let names =
            NAMES.get_or_init(|| parse(&std::env::var("TESSERA_RESOLVE").unwrap_or_default()));
        names.as_ref().map(|names| names.get(host).copied()).map_err(Fault::clone)
    }

    pub(super) fn parse(text: &str) -> Names {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let name = |part: &str| {
            let (name, address) = part.split_once('=')?;
            Some((name.to_owned(), address.parse().ok()?))
        };
        parts
            .map(|part| {
                let broken = || Fault::Broken(format!("TESSERA_RESOLVE: `{part}` is not name=IP"));
                name(part).ok_or_else(broken)
            })
            .collect()
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    #[test]
    fn names_have_addresses() {
        let names = super::debug::parse("a.b=127.0.0.1, c=::1").unwrap();
        assert_eq!(
            (names["a.b"], names["c"]),
            ([127, 0, 0, 1].into(), [0, 0, 0, 0, 0, 0, 0, 1u16].into())
        );
        for broken in ["a", "a=b", "a=127.0.0.1:5"] {
            assert!(super::debug::parse(broken).unwrap_err().to_string().contains(broken));
        }
    }
}
