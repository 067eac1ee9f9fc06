//! A thousand seeded requests that no client should send: each gets an answer of its own fault or is hung up on, and
//! nothing is left behind.

use super::{Server, read, until};
use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// xorshift: the same requests each time.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"];
const PATHS: [&str; 18] = [
    "/v1/query",
    "/v1/statements",
    "/v1/statements/nope",
    "/v1/statements/..%2f..%2fetc%2fpasswd",
    "/v1/statements/nope/result?format=npy",
    "/v1/statements/nope?wait_ms=99999999999999999999",
    "/v1/statements/nope?wait_ms=-1",
    "/v1/statements/%ff%fe/plan",
    "/v1/statements/nope/events",
    "/v1/sessions/nope",
    "/v1/tensors/..%2F..%2Fetc%2Fpasswd",
    "/v1/tensors/%00",
    "/v1/tensors/a'; DROP TABLE b",
    "/v1/tensors/%E2%80%AE",
    "/v1/tensors/nope?dims=a",
    "/v1/query?format=parquet&format=%ff",
    "/metrics/../../etc/passwd",
    "//",
];
const BODIES: [&str; 16] = [
    "",
    "{",
    "null",
    "[]",
    "{\"sql\": 1}",
    "{\"sql\": \"SELECT 1\", \"wait_ms\": \"soon\"}",
    "{\"sql\": \"SELECT 1\", \"wait_ms\": -5}",
    "{\"sql\": \"SELECT 1\", \"wait_ms\": 1e400}",
    "{\"sql\": \"SELECT 1\", \"on_timeout\": \"explode\"}",
    "{\"sql\": \"SELECT 1\", \"format\": \"exe\"}",
    "{\"sql\": \"SELECT 1\", \"nope\": true}",
    "{\"sql\": \"SELECT ?\", \"params\": \"x\"}",
    "{\"sql\": \"\", \"params\": {}}",
    "{\"sql\": \";;;\"}",
    "{\"sql\": \"SELECT 1\", \"request_id\": \"\"}",
    "SELEC 1; DROP",
];

/// The bytes of a request, and whether its sender then hangs up.
fn request(r: &mut Seeded, host: &str) -> (Vec<u8>, bool) {
    let method = r.pick(&METHODS);
    let path = r.pick(&PATHS).replace(' ', "%20");
    let mut body = match r.below(6) {
        0 => {
            let n = r.below(300);
            r.bytes(n)
        }
        1 => b"\x93NUMPY\x01\x00\xff\xff{'descr'".to_vec(),
        2 => format!("{{\"sql\": \"{}\"}}", "(".repeat(r.below(3000))).into_bytes(),
        _ => r.pick(&BODIES).as_bytes().to_vec(),
    };
    let mut headers = format!("Host: {host}\r\nConnection: close\r\n");
    match r.below(12) {
        0 => headers.push_str(&format!("X-Long: {}\r\n", "a".repeat(r.below(200_000)))),
        1 => (0..r.below(300)).for_each(|i| headers.push_str(&format!("X-{i}: 1\r\n"))),
        2 => headers.push_str("Accept: image/png\r\n"),
        3 => headers.push_str("Tessera-Session: nope\r\n"),
        4 => headers.push_str("Tessera-Session: \u{e9}\r\n"),
        5 => headers.push_str("Authorization: Bearer \u{1F600}\r\n"),
        6 => headers.push_str("Transfer-Encoding: chunked\r\n"),
        7 => headers.push_str("Content-Type: text/\u{0}plain\r\n"),
        8 => headers = "Host: evil.example\r\nConnection: close\r\n".into(),
        _ => {}
    }
    // Without its last chunk a body would be waited for, as it should be.
    let mut is_cut = headers.contains("Transfer-Encoding");
    let length = match r.below(8) {
        0 => body.len() + 1 + r.below(1000),
        1 => 5 << 20,
        _ => body.len(),
    };
    is_cut |= length > body.len();
    if r.below(10) > 0 {
        headers.push_str(&format!("Content-Length: {length}\r\n"));
    }
    let version = r.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "SMTP"]);
    let mut bytes = format!("{method} {path} {version}\r\n{headers}\r\n").into_bytes();
    bytes.append(&mut body);
    match r.below(20) {
        0 => {
            let n = r.below(200);
            bytes = r.bytes(n);
            is_cut = true;
        }
        1 => {
            let n = r.below(bytes.len());
            bytes.truncate(n);
            is_cut = true;
        }
        _ => {}
    }
    (bytes, is_cut)
}

#[test]
fn a_thousand_malformed_requests_do_no_harm() {
    let s = Server::start(&["--memory-limit", "64MiB"], &[("TESSERA_RESULT_TTL", "1")]);
    let mut r = Seeded(0x9e37_79b9_7f4a_7c15);
    let (mut answers, mut hung_up) = (0, 0);
    let mut warm = 0;
    for i in 0..1000 {
        let (bytes, is_cut) = request(&mut r, &s.address);
        let started = Instant::now();
        let mut stream = s.connect();
        // The server may have refused it before all is sent.
        let _ = stream.write_all(&bytes);
        if is_cut {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let shown = || String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        match read(stream) {
            Some(reply) => {
                answers += 1;
                assert!(reply.status < 500, "{i}: {} {}\n{}", reply.status, reply.text(), shown());
            }
            None => hung_up += 1,
        }
        assert!(started.elapsed() < Duration::from_secs(50), "{i} hangs\n{}", shown());
        if i == 200 {
            warm = s.resident();
        }
    }
    assert!(answers > 600 && hung_up < 400, "{answers} answers, {hung_up} without");
    let reply = s.ask("POST", "/v1/query?format=csv", "", b"SELECT sum(arange(5)) AS s");
    assert_eq!(reply.text(), "s\n10\n");
    until("nothing is left", || {
        let statements = s.get("/v1/statements").json()["statements"].as_array().unwrap().len();
        statements == 0
            && [
                "tessera_statements_running",
                "tessera_statements_queued",
                "tessera_streams",
                "tessera_quota_used_bytes",
                "tessera_scratch_used_bytes",
            ]
            .iter()
            .all(|m| s.metric(m) == 0.0)
    });
    // The requests include valid `POST /v1/sessions`; the sessions expire by themselves. Memory returns to nearly its
    // old size.
    assert!(s.resident() < warm + (64 << 20), "{warm} then {}", s.resident());
}
