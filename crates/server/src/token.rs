//! Tokens that a server creates, and the files in which clients of the same user find them.
//!
//! Any user who can open a port of this machine could otherwise act as the user who runs the server. So a server
//! without a token creates one at each start, as Jupyter does. It prints the token on stderr, and stores it while it
//! runs in a file that only its user can read:
//!
//! ```text
//!   $XDG_RUNTIME_DIR/tessera/127.0.0.1-8080.token      or $XDG_STATE_HOME, or ~/.local/state
//! ```

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tessera_engine::config::Secret;
use url::{Host, Url};

/// A random token of 244 bits.
pub(crate) fn make() -> Secret {
    let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    Secret::new(format!("{}{}", a.simple(), b.simple()))
}

/// The file of a token, until this is dropped.
#[derive(Debug)]
pub(crate) struct Published {
    path: PathBuf,
    token: Secret,
}

impl Published {
    /// Writes the token of a server that listens at `address`.
    ///
    /// # Errors
    /// The user has no such directory, or the file cannot be written.
    pub(crate) fn new(address: SocketAddr, token: &Secret) -> io::Result<Self> {
        let directory = directory().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "neither XDG_RUNTIME_DIR nor HOME is set")
        })?;
        Self::write(&directory, address, token)
    }

    fn write(directory: &Path, address: SocketAddr, token: &Secret) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        let path = directory.join(name(address.ip(), address.port()));
        // The file appears atomically: a client reads it as soon as it has its name.
        let made = directory.join(format!(".{}.part", uuid::Uuid::new_v4().simple()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&made)?;
        let written = writeln!(file, "{}", token.reveal()).and_then(|()| fs::rename(&made, &path));
        if written.is_err() {
            // Removes the temporary file; the first error is the one to report.
            let _ = fs::remove_file(&made);
        }
        written.map(|()| Published { path, token: token.clone() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Another server may use the port by now, and have written its own token.
        if read(&self.path).as_deref() == Some(self.token.reveal()) {
            tessera_storage::warn_unless_removed(&self.path, fs::remove_file(&self.path));
        }
    }
}

/// The token of a server of this user on this machine, if it created one.
pub(crate) fn find(url: &Url) -> Option<String> {
    find_in(&directory()?, url)
}

fn find_in(directory: &Path, url: &Url) -> Option<String> {
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
    let mut at = match url.host()? {
        Host::Domain(name) if name.eq_ignore_ascii_case("localhost") => vec![v4, v6],
        Host::Ipv4(ip) if ip.is_loopback() => vec![IpAddr::V4(ip)],
        Host::Ipv6(ip) if ip.is_loopback() => vec![IpAddr::V6(ip)],
        _ => return None,
    };
    at.extend([IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    let port = url.port_or_known_default()?;
    at.into_iter().find_map(|ip| read(&directory.join(name(ip, port))))
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_string())
}

fn name(ip: IpAddr, port: u16) -> String {
    format!("{}-{port}.token", ip.to_string().replace(':', "_"))
}

fn directory() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = of("XDG_RUNTIME_DIR")
        .or_else(|| of("XDG_STATE_HOME"))
        .or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(base.join("tessera"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_the_same_user_finds_the_token() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/tessera");
        let token = make();
        assert_ne!(make().reveal(), token.reveal());
        let published =
            Published::write(&directory, "127.0.0.1:8080".parse().unwrap(), &token).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(published.path())), (0o700, 0o600));
        let find = |url: &str| find_in(&directory, &Url::parse(url).unwrap());
        for url in ["http://127.0.0.1:8080", "http://localhost:8080/x", "https://LOCALHOST:8080"] {
            assert_eq!(find(url).as_deref(), Some(token.reveal()), "{url}");
        }
        for url in
            ["http://127.0.0.2:8080", "http://[::1]:8080", "http://localhost", "http://h:8080"]
        {
            assert_eq!(find(url), None, "{url}");
        }
        // The next server of the port writes its own, which the end of this one leaves.
        let next = make();
        let later = Published::write(&directory, "127.0.0.1:8080".parse().unwrap(), &next).unwrap();
        drop(published);
        assert_eq!(find("http://localhost:8080").as_deref(), Some(next.reveal()));
        drop(later);
        assert_eq!(find("http://localhost:8080"), None);
    }
}
