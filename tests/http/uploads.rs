//! Uploads: stored whole or not at all, and refused in the client's terms.

use super::{Server, read, until};
use serde_json::{Value, json};
use std::io::Write;

/// A stream of Arrow's messages.
fn arrow(columns: Vec<(&str, arrow::array::ArrayRef)>) -> Vec<u8> {
    use arrow::datatypes::{Field, Schema};
    let fields: Vec<Field> =
        columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    let schema = std::sync::Arc::new(Schema::new(fields));
    let columns = columns.into_iter().map(|(_, a)| a).collect();
    let batch = arrow::array::RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn uploads_that_would_change_are_refused_in_the_words_of_the_client() {
    use arrow::array::{ArrayRef, Int64Array, TimestampNanosecondArray, UInt64Array};
    use std::sync::Arc;
    let s = Server::start(&[], &[]);
    let put = |path: &str, body: &[u8]| {
        let r = s.ask("PUT", &format!("/v1/tensors/{path}"), "", body);
        (r.status, r.json()["error"].clone())
    };
    let v = || -> ArrayRef { Arc::new(Int64Array::from(vec![10, 20])) };
    let labels = |k: Vec<u64>| arrow(vec![("k", Arc::new(UInt64Array::from(k))), ("v", v())]);
    // Labels beyond int64.
    assert_eq!(put("ar?dims=k", &labels(vec![3, 1 << 63])).0, 201);
    let r = s.ask("POST", "/v1/query?format=csv", "", b"SELECT * FROM ar");
    assert_eq!(r.text(), "k,v\n3,10\n9223372036854775808,20\n");
    // Moments between microseconds.
    let times = |t: Vec<i64>| {
        arrow(vec![("t", Arc::new(TimestampNanosecondArray::from(t)) as ArrayRef), ("v", v())])
    };
    let (status, e) = put("at?dims=t", &times(vec![1000, 2001]));
    assert_eq!(status, 400);
    assert!(e["message"].to_string().contains("the column `t` has a moment of 2001 ns"), "{e}");
    assert_eq!(put("at?dims=t", &times(vec![1000, 2000])).0, 201);
    let npy = |cells: [i64; 2]| {
        let header = "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }\n";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(cells.iter().flat_map(|c| c.to_le_bytes()));
        bytes
    };
    let (status, e) = put("an", &npy([0, 57]));
    assert_eq!(status, 400);
    assert!(e["message"].to_string().contains("57 ns"), "{e}");
    assert_eq!(put("an", &npy([i64::MIN, 57_000])).0, 201);
    // The response reveals nothing of the server's own form of the request.
    let whole = npy([0, 0]);
    for (path, body, reason) in [
        ("x?dims=k,k", labels(vec![1, 2]), "`dims=k,k` names `k` twice"),
        ("x?dims=k,", labels(vec![1, 2]), "`dims=k,` has an empty name"),
        ("x?dims=k", arrow(vec![("k", v()), ("a", v()), ("a", v())]), "two columns `a`"),
        ("x?dims=k,v", labels(vec![1, 2]), "leave some"),
        ("x", whole[..whole.len() - 1].to_vec(), "in the upload: the shape [2] needs 16 bytes"),
        ("x?dims=k", labels(vec![1, 1]), "k = 1"),
        (".x", whole.clone(), "begins with a dot"),
    ] {
        let (status, e) = put(path, &body);
        assert_eq!((status, &e["position"]), (400, &Value::Null), "{path}: {e}");
        assert!(e["message"].as_str().unwrap().contains(reason), "{path}: {e}");
        assert!(!e.to_string().contains("tessera-spill"), "{path}: {e}");
    }
    let r = s.ask("PUT", "/v1/tensors/x", "Content-Encoding: gzip\r\n", &whole);
    assert_eq!((r.status, &r.json()["error"]["code"]), (415, &json!("unsupported_encoding")));
    assert_eq!(s.get("/v1/tensors/x").status, 404);
    // NumPy ignores bytes behind the cells, and so does an upload.
    let trailing = std::fs::read("tests/data/bad/npy_trailing.npy").unwrap();
    assert_eq!(put("x", &trailing).0, 201);
}

#[test]
fn uploads_are_kept_whole_or_not_at_all() {
    let s = Server::start(&["--memory-limit", "64MiB"], &[]);
    // 160 MB through a server of 64 MiB.
    let n = 20_000_000u64;
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({n},), }}");
    let pad = 128 - 10 - header.len() - 1;
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend_from_slice(&118u16.to_le_bytes());
    npy.extend_from_slice(header.as_bytes());
    npy.extend(std::iter::repeat_n(b' ', pad));
    npy.push(b'\n');
    let small = |cells: &[f64], shape: u64| {
        let text = String::from_utf8(npy[10..128].to_vec()).unwrap();
        let text = text.replace(&format!("({n},)"), &format!("({shape:08},)"));
        let mut out = npy[..10].to_vec();
        out.extend_from_slice(text.as_bytes());
        out.extend(cells.iter().flat_map(|c| c.to_le_bytes()));
        out
    };
    let put =
        |body: &[u8]| s.ask("PUT", "/v1/tensors/up", "Content-Type: application/x-npy\r\n", body);
    let r = put(&small(&[1.0, 2.5], 2));
    assert_eq!(r.status, 201, "{}", r.text());
    let sum = || s.ask("POST", "/v1/query?format=csv", "", b"SELECT sum(up) AS s FROM up").text();
    assert_eq!(sum(), "s\n3.5\n");
    // Truncated, malformed or aborted uploads leave the old one in place.
    for bad in [&small(&[1.0], 2)[..], b"hello world", b"\x93NUMPY", &npy[..100], b""] {
        let r = put(bad);
        assert_eq!(r.status, 400, "{}", r.text());
    }
    let mut broken = s.connect();
    let head = format!(
        "PUT /v1/tensors/up HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000\r\n\r\n",
        s.address
    );
    broken.write_all(head.as_bytes()).unwrap();
    broken.write_all(&npy[..128]).unwrap();
    drop(broken);
    assert_eq!(sum(), "s\n3.5\n");
    let mut large = s.connect();
    let head = format!(
        "PUT /v1/tensors/up HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        s.address,
        128 + n * 8
    );
    large.write_all(head.as_bytes()).unwrap();
    large.write_all(&npy).unwrap();
    let mut at = 0u64;
    while at < n {
        let piece: Vec<u8> =
            (at..(at + 100_000).min(n)).flat_map(|i| (i as f64).to_le_bytes()).collect();
        large.write_all(&piece).unwrap();
        at += 100_000;
        assert!(s.resident() < 400 << 20);
    }
    let r = read(large).unwrap();
    assert_eq!(r.status, 201, "{}", r.text());
    assert_eq!(sum(), "s\n199999990000000.0\n");
    let fields = s.get("/v1/tensors/up").json();
    assert_eq!(fields["fields"][0]["dtype"], "float64", "{fields}");
    assert!(s.get("/v1/tensors").text().contains("\"up\""));
    assert_eq!(s.ask("DELETE", "/v1/tensors/up", "", b"").status, 200);
    assert_eq!(s.get("/v1/tensors/up").status, 404);
    until("all is free", || s.metric("tessera_quota_used_bytes") == 0.0);
}
