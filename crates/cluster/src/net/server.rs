//! The server side of calls.

use super::credentials::Credentials;
use super::{ALIVE, CONNECTION_WINDOW, Fault, MESSAGE_BYTES_MAX, STREAM_WINDOW};
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, Result as Answer, SchemaResult,
    Ticket,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tessera_exec::chunk::ipc::Message;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Upper bound on concurrent streams of one connection.
const STREAMS_MAX: u32 = 256;
/// How long running calls may take during shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// The messages with which a party answers a call.
pub type Answers = BoxStream<'static, Result<Bytes, Fault>>;

/// The calls that a party serves.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Serves an action with a stream of messages; the stream is dropped when the caller cancels it.
    async fn action(&self, kind: &str, body: Bytes) -> Result<Answers, Fault>;

    /// The objects that a client may ask for.
    fn objects(&self) -> BoxStream<'static, FlightInfo> {
        stream::empty().boxed()
    }

    /// Serves an object.
    async fn object(&self, ticket: Bytes) -> Result<Object, Fault>;
}

/// An object in transfer.
pub struct Object {
    /// Size in bytes.
    pub bytes: u64,
    /// The messages, in order.
    pub messages: BoxStream<'static, Result<Message, Fault>>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Object {
    /// An object in memory.
    pub fn whole(messages: Vec<Message>) -> Self {
        let bytes = messages.iter().map(Message::bytes).sum();
        Object { bytes, messages: stream::iter(messages.into_iter().map(Ok)).boxed() }
    }
}

/// A listening server. Dropping it ends it at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address is not loopback and TLS is off; the address is in use; the certificates are invalid.
    pub async fn bind(
        listen: SocketAddr,
        service: Arc<dyn Service>,
        credentials: &Credentials,
    ) -> Result<Self, Fault> {
        if !listen.ip().is_loopback() && !credentials.has_tls() {
            return Err(Fault::Denied(format!(
                "will not listen on {listen} without TLS: give `cluster-certificate`, \
                 `cluster-key` and `cluster-authority`, or listen on 127.0.0.1"
            )));
        }
        let cannot = |e: std::io::Error| Fault::Failed(format!("cannot listen on {listen}: {e}"));
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let end = CancellationToken::new();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let flight = FlightServiceServer::new(Flight { service, end: end.clone() })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let shown = credentials.clone();
        let flight = InterceptedService::new(flight, move |request| shown.check(request));
        let mut builder = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS_MAX)
            .max_frame_size(1 << 20)
            .http2_keepalive_interval(Some(ALIVE))
            .http2_keepalive_timeout(Some(ALIVE));
        if let Some(tls) = credentials.server() {
            let refused = |e| Fault::Denied(format!("the certificates cannot be used: {e}"));
            builder = builder.tls_config(tls).map_err(refused)?;
        }
        let ended = end.clone().cancelled_owned();
        let router = builder.add_service(flight);
        let task = tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming_shutdown(incoming, ended).await {
                tracing::error!(%error, "the cluster's port is closed");
            }
        });
        Ok(Server { address, end, task })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down: actions are cut off, objects in transfer may take two seconds more.
    pub async fn shutdown(mut self) {
        self.end.cancel();
        if tokio::time::timeout(GRACE, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.cancel();
        self.task.abort();
    }
}

struct Flight {
    service: Arc<dyn Service>,
    end: CancellationToken,
}

fn none<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("parties of a cluster serve ListFlights, DoGet and DoAction"))
}

#[async_trait]
impl FlightService for Flight {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<Answer, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn do_action(
        &self,
        request: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        Credentials::requires_protocol(&request)?;
        let Action { r#type, body } = request.into_inner();
        let answers = self.service.action(&r#type, body).await?;
        let answers = answers.map_ok(|body| Answer { body }).map_err(Status::from);
        // Connections outlive the server that accepted them; running actions end with it.
        let end = self.end.clone();
        let cut = stream::once(async move {
            let fault = Fault::Unreachable("the party ends".into());
            end.is_cancelled().then(|| Err(Status::from(fault)))
        });
        let answers = answers.take_until(self.end.clone().cancelled_owned());
        Ok(Response::new(answers.chain(cut.filter_map(std::future::ready)).boxed()))
    }

    async fn do_get(
        &self,
        request: Request<Ticket>,
    ) -> Result<Response<Self::DoGetStream>, Status> {
        let Object { bytes, messages } = self.service.object(request.into_inner().ticket).await?;
        // The first message has the size. Columns are put together as they are sent, so that only they are copied.
        let mut size = bytes.to_le_bytes().to_vec();
        let messages = messages.map_ok(move |message| {
            let Message { header, mut body, after } = message;
            size.extend_from_slice(&after);
            FlightData {
                flight_descriptor: None,
                data_header: header,
                data_body: match body.len() {
                    0 | 1 => body.pop().unwrap_or_default(),
                    _ => body.concat().into(),
                },
                app_metadata: std::mem::take(&mut size).into(),
            }
        });
        Ok(Response::new(messages.map_err(Status::from).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        none()
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        Ok(Response::new(self.service.objects().map(Ok).boxed()))
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        none()
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        none()
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        none()
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        none()
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        none()
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        none()
    }
}
