#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tessera_exec::chunk::ipc::Message;

const SOON: Duration = Duration::from_secs(5);

/// Sets the flag when it is dropped.
struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[derive(Default)]
struct Echo {
    dropped: Arc<AtomicBool>,
}

#[async_trait]
impl Service for Echo {
    async fn action(
        &self,
        kind: &str,
        body: Bytes,
    ) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        match kind {
            "echo" => Ok(stream::iter([Ok(body.clone()), Ok(body)]).boxed()),
            "fail" => Err(Fault::Failed("{\"a\": \"\u{e4}\"}".into())),
            "fail late" => Ok(stream::iter([Ok(body), Err(Fault::NotFound("x".into()))]).boxed()),
            "silent" => {
                let watched = Watched(self.dropped.clone());
                let first = stream::once(std::future::ready(Ok(body)));
                let never = stream::once(async move {
                    let _watched = watched;
                    std::future::pending().await
                });
                Ok(first.chain(never).boxed())
            }
            "never" => std::future::pending().await,
            kind => Err(Fault::Broken(kind.into())),
        }
    }

    async fn object(&self, ticket: Bytes) -> Result<Object, Fault> {
        let bytes: usize = std::str::from_utf8(&ticket).unwrap().parse().unwrap();
        match bytes {
            0 => Err(Fault::NotFound("nothing".into())),
            n => Ok(Object::whole(messages(n))),
        }
    }
}

/// Messages with and without columns, and with bytes between them.
fn messages(n: usize) -> Vec<Message> {
    let [first, second] = [Bytes::from(vec![1; n / 2]), Bytes::from(vec![2; n - n / 2])];
    let header = Bytes::from_static(b"header");
    vec![
        Message { header: header.clone(), body: vec![], after: Bytes::new() },
        Message {
            header: header.clone(),
            body: vec![first.clone(), second],
            after: header.clone(),
        },
        Message { header, body: vec![first], after: Bytes::from_static(b"end") },
    ]
}

fn secret(directory: &Path, text: &str) -> Credentials {
    let path = directory.join(format!("{}.secret", text.len()));
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Credentials::load(&Security { secret: path, ..Security::default() }).unwrap()
}

async fn start(credentials: &Credentials) -> (Server, String, Arc<AtomicBool>) {
    let echo = Echo::default();
    let dropped = echo.dropped.clone();
    let listen = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(listen, Arc::new(echo), credentials).await.unwrap();
    let address = server.address().to_string();
    (server, address, dropped)
}

#[tokio::test]
async fn messages_arrive() {
    let files = tempfile::tempdir().unwrap();
    let credentials = secret(files.path(), "a secret of many bytes");
    let (server, address, _) = start(&credentials).await;
    let peers = Peers::new(&credentials);
    let body = Bytes::from_static(b"\"hello\"");
    let answers = peers.action(&address, "echo", body.clone(), SOON).await.unwrap();
    let answers: Vec<_> = answers.map(|a| a.unwrap()).collect().await;
    assert_eq!(answers, [body.clone(), body.clone()]);
    assert_eq!(peers.call::<_, String>(&address, "echo", &"x", SOON).await.unwrap(), "x");
    let failed = peers.action(&address, "fail", body.clone(), SOON).await.err().unwrap();
    assert_eq!(failed, Fault::Failed("{\"a\": \"\u{e4}\"}".into()));
    let mut late = peers.action(&address, "fail late", body.clone(), SOON).await.unwrap();
    assert_eq!(late.next().await.unwrap().unwrap(), body);
    assert_eq!(late.next().await.unwrap().unwrap_err(), Fault::NotFound("x".into()));

    for n in [1, 2, 3, 1000, 9 << 20] {
        let ticket = Bytes::from(n.to_string());
        let want: Vec<Bytes> = messages(n).into_iter().flat_map(Message::parts).collect();
        let want = want.concat();
        let object = peers.object(&address, ticket, want.len() as u64, SOON).await.unwrap();
        assert!(object == want, "{n}");
    }
    let large = peers.object(&address, Bytes::from_static(b"100"), 99, SOON).await.unwrap_err();
    assert!(matches!(large, Fault::Broken(_)), "{large}");
    let none = peers.object(&address, Bytes::from_static(b"0"), 99, SOON).await.unwrap_err();
    assert_eq!(none, Fault::NotFound("nothing".into()));
    assert!(peers.answers(&address, SOON).await);
    server.shutdown().await;
    assert!(!peers.answers(&address, SOON).await);
}

#[tokio::test]
async fn strangers_get_no_answer() {
    let files = tempfile::tempdir().unwrap();
    let credentials = secret(files.path(), "a secret of many bytes");
    let (_server, address, _) = start(&credentials).await;
    let other = Peers::new(&secret(files.path(), "another secret of bytes"));
    let denied = other.action(&address, "echo", Bytes::new(), SOON).await.err().unwrap();
    assert!(matches!(denied, Fault::Denied(_)), "{denied}");
    let denied = other.object(&address, Bytes::from_static(b"1"), 9, SOON).await.unwrap_err();
    assert!(matches!(denied, Fault::Denied(_)), "{denied}");

    // Unused methods require the secret too.
    use arrow_flight::flight_service_client::FlightServiceClient;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut plain = FlightServiceClient::new(channel.connect().await.unwrap());
    let listed = plain.list_flights(arrow_flight::Criteria::default()).await.unwrap_err();
    assert_eq!(listed.code(), tonic::Code::Unauthenticated);
    let mut shown = tonic::Request::new(arrow_flight::Empty {});
    credentials.show(&mut shown).unwrap();
    let unused = plain.list_actions(shown).await.unwrap_err();
    assert_eq!(unused.code(), tonic::Code::Unimplemented);
    // Without a version there is no action.
    let mut bare = tonic::Request::new(arrow_flight::Action::default());
    credentials.show(&mut bare).unwrap();
    bare.metadata_mut().remove(PROTOCOL_HEADER);
    let refused = plain.do_action(bare).await.unwrap_err();
    let protocol = format!("cluster protocol {PROTOCOL}, the other one none");
    assert!(refused.message().contains(&protocol), "{refused}");
    // Another version of the protocol.
    let mut shown = tonic::Request::new(arrow_flight::Empty {});
    credentials.show(&mut shown).unwrap();
    shown.metadata_mut().insert(PROTOCOL_HEADER, "0".parse().unwrap());
    let old = plain.list_actions(shown).await.unwrap_err();
    assert_eq!(old.code(), tonic::Code::FailedPrecondition);
    let protocol = format!("cluster protocol {PROTOCOL}, the other one 0; server and workers need");
    assert!(old.message().contains(&protocol), "{old}");
}

#[tokio::test]
async fn the_dead_and_the_silent_are_noticed() {
    let files = tempfile::tempdir().unwrap();
    let credentials = secret(files.path(), "a secret of many bytes");
    let (server, address, dropped) = start(&credentials).await;
    let peers = Peers::new(&credentials);
    let body = Bytes::from_static(b"x");
    // The caller cancels the rest.
    let mut answers = peers.action(&address, "silent", body.clone(), SOON).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap(), body);
    assert!(!dropped.load(SeqCst));
    drop(answers);
    let asked = Instant::now();
    while !dropped.load(SeqCst) {
        assert!(asked.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The other party does not respond.
    let within = Duration::from_millis(100);
    let silent = peers.action(&address, "never", body.clone(), within).await.err().unwrap();
    assert!(matches!(silent, Fault::Unreachable(_)), "{silent}");
    // The connection ends in the middle.
    let mut answers = peers.action(&address, "silent", body.clone(), SOON).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap(), body);
    drop(server);
    let ended = tokio::time::timeout(SOON, answers.next()).await.unwrap();
    assert!(matches!(ended, Some(Err(Fault::Unreachable(_)))), "{ended:?}");
    let gone = peers.action(&address, "echo", body, SOON).await.err().unwrap();
    assert!(matches!(gone, Fault::Unreachable(_)), "{gone}");
}

#[tokio::test]
async fn without_tls_nothing_leaves_the_machine() {
    let files = tempfile::tempdir().unwrap();
    let credentials = secret(files.path(), "a secret of many bytes");
    let listen = "0.0.0.0:0".parse().unwrap();
    let open = Server::bind(listen, Arc::new(Echo::default()), &credentials).await.unwrap_err();
    assert!(open.to_string().contains("cluster-certificate"), "{open}");
    let peers = Peers::new(&credentials);
    for address in ["10.0.0.1:50050", "example.invalid:50050"] {
        let far = peers.action(address, "echo", Bytes::new(), SOON).await.err().unwrap();
        assert!(matches!(far, Fault::Denied(_)), "{far}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("below/cluster.secret");
    Credentials::make(&path).unwrap();
    let made = std::fs::read_to_string(&path).unwrap();
    assert!(made.trim().len() >= 64);
    Credentials::make(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), made);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    let load = || Credentials::load(&Security { secret: path.clone(), ..Security::default() });
    load().unwrap();
    // A file that others can read; a secret that is too short; some files of TLS missing.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(load().unwrap_err().to_string().contains("chmod 600"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, "short\n").unwrap();
    assert!(load().unwrap_err().to_string().contains("has 5 bytes"));
    std::fs::write(&path, &made).unwrap();
    let half = Security { secret: path.clone(), key: Some(path), ..Security::default() };
    assert!(Credentials::load(&half).unwrap_err().to_string().contains("three files"));
}
