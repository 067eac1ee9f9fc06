//! Statements whose chunks are kept, without a server: what a server does for those that it acknowledged.

use super::Handle;
use crate::session::Host;
use tokio_util::sync::CancellationToken;

impl Handle {
    /// A statement whose chunks are kept in the warehouse of `host`, as far as the setting `tessera.durability` says
    /// so, until [`Handle::remove_chunks`].
    pub fn lasting(host: &Host) -> Handle {
        Handle::new().kept_in(host)
    }

    /// The same statement once more, as a server runs it that was started after a failure: it is bound to what it was
    /// bound to, and finds its chunks. Waits until they are written.
    pub async fn once_more(&self, host: &Host) -> Handle {
        let durable = self.chunks().lock().durable.clone();
        if let Some(durable) = durable {
            durable.written().await;
        }
        Handle::again(self.id().into(), &CancellationToken::new(), self.entry().recipe())
            .kept_in(host)
    }

    fn kept_in(self, host: &Host) -> Handle {
        self.chunks().stored_in(host.durable().clone());
        self.chunks().survives();
        self
    }
}
