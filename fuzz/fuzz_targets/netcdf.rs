#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = tessera_storage::formats::probe_as("netcdf", bytes);
});
