//! The client side of calls.

use super::credentials::Credentials;
use super::reason::{Unreached, unreachable};
use super::{
    ALIVE, Answers, CONNECTION_WINDOW, Fault, MESSAGE_BYTES_MAX, Object, STREAM_WINDOW, resolve,
};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, Ticket};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tessera_exec::chunk::ipc::Message;
use tessera_storage::lock;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Upper bound on open connections.
const KEPT_MAX: usize = 1024;

/// Connections to other parties, one for each address.
#[derive(Clone, Debug)]
pub struct Peers {
    credentials: Credentials,
    open: Arc<Mutex<BTreeMap<String, Channel>>>,
}

fn late(what: &str, within: Duration) -> Fault {
    Fault::Unreachable(format!("{what} took longer than {} ms", within.as_millis()))
}

async fn timed<T>(
    what: &str,
    within: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(within, call).await {
        Ok(answer) => answer.map_err(Fault::from),
        Err(_) => Err(late(what, within)),
    }
}

impl Peers {
    /// Connections are opened when they are first used.
    pub fn new(credentials: &Credentials) -> Self {
        Peers { credentials: credentials.clone(), open: Arc::default() }
    }

    /// Calls an action; the first message, or the refusal, arrives `within` the time. Dropping the stream ends the
    /// action.
    ///
    /// # Errors
    /// Errors of the other party, or [`Fault::Unreachable`].
    pub async fn action(
        &self,
        address: &str,
        kind: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Answers, Fault> {
        let mut client = self.client(address)?;
        let mut request = Request::new(Action { r#type: kind.into(), body });
        self.credentials.show(&mut request)?;
        let answers = timed(kind, within, client.do_action(request)).await?.into_inner();
        Ok(answers.map_ok(|answer| answer.body).map_err(Fault::from).boxed())
    }

    /// Calls an action with one response in JSON.
    ///
    /// # Errors
    /// Errors of [`Peers::action`]; [`Fault::Broken`] for an invalid response.
    pub async fn call<A: Serialize + Sync, B: DeserializeOwned>(
        &self,
        address: &str,
        kind: &str,
        body: &A,
        within: Duration,
    ) -> Result<B, Fault> {
        let broken = |e: serde_json::Error| Fault::Broken(format!("`{kind}` has no JSON: {e}"));
        let body = Bytes::from(serde_json::to_vec(body).map_err(broken)?);
        let ask = async {
            let mut answers = self.action(address, kind, body, within).await?;
            let none = || Fault::Broken(format!("`{kind}` was not answered"));
            serde_json::from_slice(&answers.next().await.ok_or_else(none)??).map_err(broken)
        };
        tokio::time::timeout(within, ask).await.map_err(|_| late(kind, within))?
    }

    /// Fetches an object of at most `limit` bytes; pieces arrive within `idle` of each other.
    ///
    /// # Errors
    /// [`Fault::NotFound`], [`Fault::Unreachable`], [`Fault::Broken`] if it is too large or incomplete.
    pub async fn object(
        &self,
        address: &str,
        ticket: Bytes,
        limit: u64,
        idle: Duration,
    ) -> Result<Bytes, Fault> {
        let Object { bytes: total, mut messages } = self.open(address, ticket, idle).await?;
        if total > limit {
            return Err(Fault::Broken(format!(
                "a chunk of {total} bytes, where at most {limit} are expected"
            )));
        }
        let mut object = BytesMut::with_capacity(total as usize);
        while let Some(message) = messages.next().await {
            let message = message?;
            if object.len() as u64 + message.bytes() > total {
                return Err(Fault::Broken(format!("a chunk has more than its {total} bytes")));
            }
            message.parts().for_each(|part| object.extend_from_slice(&part));
        }
        match object.len() as u64 == total {
            true => Ok(object.freeze()),
            false => Err(Fault::Unreachable(format!(
                "a chunk ended after {} of {total} bytes",
                object.len()
            ))),
        }
    }

    /// Fetches an object as a stream; pieces arrive within `idle` of each other.
    ///
    /// # Errors
    /// Errors of [`Peers::object`].
    pub async fn open(
        &self,
        address: &str,
        ticket: Bytes,
        idle: Duration,
    ) -> Result<Object, Fault> {
        let mut client = self.client(address)?;
        let mut request = Request::new(Ticket { ticket });
        self.credentials.show(&mut request)?;
        let mut pieces = timed("a chunk", idle, client.do_get(request)).await?.into_inner();
        let unsized_one = || Fault::Broken("a chunk without its size".into());
        let first = timed("a chunk", idle, pieces.message()).await?.ok_or_else(unsized_one)?;
        let (size, after) = first.app_metadata.split_first_chunk().ok_or_else(unsized_one)?;
        let (bytes, after) = (u64::from_le_bytes(*size), first.app_metadata.slice_ref(after));
        let first = message(FlightData { app_metadata: after, ..first });
        let rest = stream::try_unfold(pieces, move |mut pieces| async move {
            let piece = timed("a piece of a chunk", idle, pieces.message()).await?;
            Ok(piece.map(|piece| (message(piece), pieces)))
        });
        let messages = stream::once(std::future::ready(Ok(first))).chain(rest);
        Ok(Object { bytes, messages: messages.boxed() })
    }

    /// True if a party with the secret responds at the address within the time: distinguishes a dead party from a slow
    /// one.
    pub async fn answers(&self, address: &str, within: Duration) -> bool {
        self.probe(address, within).await.is_ok()
    }

    /// Checks that a party responds at the address within the time.
    ///
    /// # Errors
    /// The reason why the party does not respond.
    pub(crate) async fn probe(&self, address: &str, within: Duration) -> Result<(), Unreached> {
        let ask = async {
            let endpoint = self.endpoint(address)?;
            let channel = endpoint.connect().await.map_err(|e| unreachable(&e))?;
            let mut client = FlightServiceClient::new(channel);
            let mut request = Request::new(Action { r#type: "ping".into(), body: Bytes::new() });
            self.credentials.show(&mut request)?;
            match client.do_action(request).await.map_err(Fault::from) {
                Err(fault @ Fault::Unreachable(_)) => Err(fault),
                _ => Ok(()),
            }
        };
        let asked = tokio::time::timeout(within, ask).await;
        asked.unwrap_or_else(|_| Err(late("a connection", within))).map_err(Unreached::of)
    }

    /// Closes the connection to a lost party.
    pub fn forget(&self, address: &str) {
        lock(&self.open).remove(address);
    }

    fn client(&self, address: &str) -> Result<FlightServiceClient<Channel>, Fault> {
        let mut open = lock(&self.open);
        let channel = match open.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let channel = self.endpoint(address)?.connect_lazy();
                if open.len() >= KEPT_MAX {
                    // Calls in progress hold their own channel.
                    open.clear();
                }
                open.insert(address.into(), channel.clone());
                channel
            }
        };
        Ok(FlightServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, Fault> {
        let tls = self.credentials.client();
        if tls.is_none() && !is_loopback(address) {
            return Err(Fault::Denied(format!(
                "will not call {address} without TLS: give `cluster-certificate`, `cluster-key` \
                 and `cluster-authority`"
            )));
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let given = resolve::address_of(host)?;
        let at = given.map_or_else(|| address.into(), |ip| format!("{ip}:{port}"));
        // The certificate must have the host of the address as it was given.
        let tls = tls.map(|tls| if given.is_some() { tls.domain_name(host) } else { tls });
        let endpoint = Endpoint::from_shared(format!("{scheme}://{at}"))
            .map_err(|e| Fault::Broken(format!("`{address}` is not an address: {e}")))?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .keep_alive_while_idle(true);
        match tls {
            Some(tls) => endpoint
                .tls_config(tls)
                .map_err(|e| Fault::Denied(format!("the certificates cannot be used: {e}"))),
            None => Ok(endpoint),
        }
    }
}

/// A message of an object, as it was sent.
fn message(piece: FlightData) -> Message {
    let body = Some(piece.data_body).filter(|body| !body.is_empty());
    let body = body.into_iter().collect();
    Message { header: piece.data_header, body, after: piece.app_metadata }
}

/// True for `127.0.0.1:1`, `[::1]:1` and `localhost:1`.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || address.parse::<SocketAddr>().is_ok_and(|a| a.ip().is_loopback())
}
