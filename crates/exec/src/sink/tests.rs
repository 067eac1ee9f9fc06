//! Writers against our own reader; `xarray` and `zarr-python` read the same stores in `sql/goldens/keep_check.py`.
#![allow(clippy::unwrap_used, reason = "tests")]
