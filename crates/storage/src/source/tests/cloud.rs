//! Stores with the same contents.

use super::*;
use crate::clouds::Server;
use crate::clouds::azure::{self, Azure};
use crate::clouds::gcs::{self, Gcs};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A store, and a way for another client to write to it.
pub(crate) enum Cloud {
    Gcs(Gcs),
    Azure(Azure),
    Memory(String),
}

impl Cloud {
    pub(crate) fn all() -> [Cloud; 3] {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = format!("memory://test-{}", COUNT.fetch_add(1, Relaxed));
        [Cloud::Gcs(Gcs::start()), Cloud::Azure(Azure::start()), Cloud::Memory(own)]
    }

    /// The clouds that are servers.
    pub(crate) fn servers() -> [Cloud; 2] {
        [Cloud::Gcs(Gcs::start()), Cloud::Azure(Azure::start())]
    }

    pub(crate) fn url(&self, key: &str) -> String {
        match self {
            Cloud::Gcs(_) => format!("gs://bkt/{key}"),
            Cloud::Azure(_) => format!("az://bkt/{key}"),
            Cloud::Memory(own) => format!("{own}/{key}"),
        }
    }

    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Cloud::Gcs(gcs) => Some(&gcs.server),
            Cloud::Azure(azure) => Some(&azure.server),
            Cloud::Memory(_) => None,
        }
    }

    /// The store with valid credentials.
    pub(crate) fn stores(&self) -> Stores {
        let environment = match self {
            Cloud::Gcs(gcs) => gcs.environment(Some(gcs::TOKEN)),
            Cloud::Azure(azure) => azure.environment(Some(azure::KEY)),
            Cloud::Memory(_) => Vec::new(),
        };
        Stores::with_environment(Duration::from_secs(30), environment)
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8]) {
        match self {
            Cloud::Gcs(gcs) => gcs.put(key, bytes),
            Cloud::Azure(azure) => azure.put(key, bytes),
            Cloud::Memory(_) => {
                let (store, key) = self.client(key);
                run(store.put(&key, bytes.to_vec().into())).unwrap();
            }
        }
    }

    fn client(&self, key: &str) -> (Arc<dyn ObjectStore>, Key) {
        let reached = self.stores().reach(&self.url(key), &Options::default()).unwrap();
        let client = reached.place.unwrap();
        (client.store, Key::parse(client.key).unwrap())
    }

    pub(super) fn remove(&self, key: &str) {
        match self {
            Cloud::Gcs(gcs) => drop(gcs.buckets().get_mut("bkt").unwrap().objects.remove(key)),
            Cloud::Azure(azure) => {
                drop(azure.containers().get_mut("bkt").unwrap().objects.remove(key));
            }
            Cloud::Memory(_) => {
                let (store, key) = self.client(key);
                run(store.delete(&key)).unwrap();
            }
        }
    }

    /// The bytes of an object, seen past the clients.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self {
            Cloud::Gcs(gcs) => {
                gcs.buckets()["bkt"].objects.get(key).map(|object| object.bytes.to_vec())
            }
            Cloud::Azure(azure) => {
                azure.containers()["bkt"].objects.get(key).map(|object| object.bytes.to_vec())
            }
            Cloud::Memory(_) => {
                let (store, key) = self.client(key);
                run(async { Some(store.get(&key).await.ok()?.bytes().await.unwrap().to_vec()) })
            }
        }
    }

    /// Copies a fixture.
    pub(super) fn copy(&self, name: &str) {
        let from = data(name);
        each_file(Path::new(&from), &mut |path| {
            let key = path.strip_prefix(data("")).unwrap().to_str().unwrap();
            self.put(key, &std::fs::read(path).unwrap());
        });
    }

    pub(super) fn filled() -> [Cloud; 3] {
        let all = Cloud::all();
        for cloud in &all {
            for name in ["colpex.v2.zarr", "zarr_zoo/v3.zarr", "npy", "bad"] {
                cloud.copy(name);
            }
        }
        all
    }
}

fn each_file(at: &Path, f: &mut dyn FnMut(&Path)) {
    match at.is_dir() {
        true => {
            for entry in std::fs::read_dir(at).unwrap() {
                each_file(&entry.unwrap().path(), f);
            }
        }
        false => f(at),
    }
}
