//! The reason why a party is not reached, in words.

use super::Fault;
use std::error::Error;
use tessera_planner::error::causes;
use tonic::Status;

/// The beginning of rustls' error for a certificate that lacks a name; the names of the certificate follow.
const OTHER_NAME: &str = "certificate not valid for name ";

/// The reason why a probe has no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// The party's certificate does not have the name by which it was called.
    OtherName(String),
    /// Anything else.
    Silent(String),
}

impl Unreached {
    pub(super) fn of(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(reason) if reason.contains(MEND) => Unreached::OtherName(reason),
            Fault::Unreachable(reason) => Unreached::Silent(reason),
            fault => Unreached::Silent(fault.to_string()),
        }
    }
}

/// The way to mend a certificate with other names.
const MEND: &str = "call the party by a name of its certificate (a worker is called by its `--advertise`, the server by \
    the `--scheduler` of the workers), or give it a certificate with that name (subjectAltName); a `*` stands for one \
    label, and at least two labels follow it";

/// The failure of a call without an answer, with its innermost cause.
pub(super) fn unreachable(error: &(dyn Error + 'static)) -> Fault {
    let mut words: Vec<String> = Vec::new();
    for error in causes(error) {
        let said = match error.downcast_ref::<Status>() {
            Some(status) if status.message().is_empty() => status.code().to_string(),
            Some(status) => status.message().to_owned(),
            None => error.to_string(),
        };
        if let Some(reason) = other_name(&said) {
            return Fault::Unreachable(reason);
        }
        if !words.iter().any(|word| word.contains(&said)) {
            words.push(said);
        }
    }
    Fault::Unreachable(words.join(": "))
}

/// `certificate not valid for name "a"; certificate is only valid for DnsName("b") or …` in our words.
fn other_name(said: &str) -> Option<String> {
    let (_, names) = said.split_once(OTHER_NAME)?;
    let (called, has) = names.split_once("; certificate is ")?;
    let has = match has.strip_prefix("only valid for ") {
        None => "no names at all".to_owned(),
        Some(has) => {
            let bare = has.replace(" or ", ", ").replace("DnsName(", "").replace("IpAddress(", "");
            bare.replace(')', "").replace('"', "`")
        }
    };
    let called = called.replace('"', "`");
    Some(format!(
        "its certificate is not for {called}, by which it is called, but for {has}: {MEND}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_lists_the_names_of_a_certificate() {
        let said = "invalid peer certificate: certificate not valid for name \"w0.w\"; certificate is only valid for \
                    DnsName(\"tessera\"), DnsName(\"*.w\") or IpAddress(10.0.0.1)";
        let reason = other_name(said).unwrap_or_default();
        let start = "its certificate is not for `w0.w`, by which it is called, but for `tessera`, `*.w`, 10.0.0.1: call";
        assert!(reason.starts_with(start), "{reason}");
        let said = "certificate not valid for name \"a\"; certificate is not valid for any names (according to its \
                    subjectAltName extension)";
        assert!(other_name(said).is_some_and(|reason| reason.contains("but for no names at all")));
        assert_eq!(other_name("certificate expired"), None);
        let told = Unreached::of(Fault::Unreachable(reason.clone()));
        assert_eq!(told, Unreached::OtherName(reason));
    }
}
