#![no_main]
//! References of kerchunk and the documents of Zarr in them.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use tessera_storage::source::{Options, Stores, open};
use tokio::runtime::{Builder, Runtime};

static PLACE: LazyLock<(Runtime, Stores, PathBuf)> = LazyLock::new(|| {
    // Panics of zarrs' codecs are caught and become errors; one that is not caught ends the target still.
    std::panic::set_hook(Box::new(|_| ()));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let name = format!("tessera-fuzz-{}.json", std::process::id());
    let stores = Stores::with_environment(Duration::from_secs(1), []);
    (runtime, stores, std::env::temp_dir().join(name))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (runtime, stores, path) = &*PLACE;
    std::fs::write(path, bytes).expect("a file in the directory for temporary files");
    let _ = runtime.block_on(open(&path.display().to_string(), &Options::default(), stores));
});
