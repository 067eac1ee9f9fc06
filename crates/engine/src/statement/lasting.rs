//! Statements with durable chunks without a server: as a server handles the statements that it acknowledged.

use super::Handle;
use crate::session::Host;
use tokio_util::sync::CancellationToken;

impl Handle {
    /// A statement whose chunks are stored in the warehouse of `host`, as the setting `tessera.durability` says, until
    /// [`Handle::remove_chunks`].
    pub fn lasting(host: &Host) -> Handle {
        Handle::new().kept_in(host)
    }

    /// The same statement again, as a restarted server recovers it: bound by its recipe, and with its chunks. Waits
    /// until the chunks are written.
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
