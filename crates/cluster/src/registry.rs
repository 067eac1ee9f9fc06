//! Workers that the server knows.
