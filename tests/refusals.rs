//! S3's responses to requests that it does not serve, from a server that only refuses.

use crate::common::binary;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

/// The error that a query of a bucket ends with, where all requests are answered so.
fn error(status: &str, headers: &str, body: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = format!(
        "HTTP/1.1 {status}\r\n{headers}content-type: application/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|n| n > 0) {
                head.push(byte[0]);
            }
            // A client that is gone has seen enough.
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let query = Command::new(binary())
        .args(["query", "SELECT sum(x) FROM 's3://bucket/x.zarr'"])
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .output()
        .unwrap();
    assert_eq!(query.status.code(), Some(1));
    String::from_utf8(query.stderr).unwrap()
}

fn body(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>")
}

#[test]
fn a_bucket_of_another_region_is_named_with_its_region() {
    let region = "x-amz-bucket-region: eu-west-1\r\n";
    for (status, code) in [
        ("301 Moved Permanently", "PermanentRedirect"),
        ("400 Bad Request", "AuthorizationHeaderMalformed"),
    ] {
        let told = error(status, region, &body(code));
        assert!(told.contains("error[storage_error]"), "{told}");
        assert!(told.contains("the bucket of `s3://bucket/x.zarr"), "{told}");
        assert!(told.contains("is in region eu-west-1"), "{told}");
        assert!(told.contains("hint: set AWS_REGION=eu-west-1"), "{told}");
    }
}

#[test]
fn a_wrong_clock_is_not_taken_for_wrong_credentials() {
    let told = error("403 Forbidden", "", &body("RequestTimeTooSkewed"));
    assert!(told.contains("this machine's clock differs too much from its own"), "{told}");
    assert!(told.contains("hint: set the clock of this machine"), "{told}");
    let told = error("403 Forbidden", "", &body("AccessDenied"));
    assert!(told.contains("error[permission_denied]"), "{told}");
}
