//! The live server of a warehouse, and its standbys.

use super::Host;
use crate::journal::{Addresses, Keeper, Standby};
use std::time::Duration;

impl Host {
    /// Renews the lease of this server, which others reach at these addresses.
    pub fn keeper(&self, addresses: Addresses) -> Keeper {
        Keeper::new(self.warehouse.epoch().clone(), addresses, self.lease_timeout())
    }

    /// Waits for the end of the live server, if this server was opened as a standby (`standby`).
    pub fn standby(&self) -> Option<Standby> {
        let epoch = self.warehouse.epoch().clone();
        self.config.standby.then(|| Standby::new(epoch, self.lease_timeout()))
    }

    fn lease_timeout(&self) -> Duration {
        Duration::from_secs(self.config.lease_timeout_s)
    }
}
