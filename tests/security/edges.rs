//! Tokens that a server makes, wrong tokens, heads of requests, HTTPS, and the permissions of a warehouse.

use super::*;
use crate::common::{SERVE, files, until};
use serde_json::json;
use std::time::Instant;

#[test]
fn a_server_makes_a_token_that_its_user_finds() {
    let world = World::new();
    let s = world.serve(&["serve"], &[]);
    let [listening, link, header, file] = &s.told[..] else { panic!("{:?}", s.told) };
    assert!(listening.contains("(with a token)"), "{listening}");
    let token = header.split("Bearer ").nth(1).unwrap().trim_end_matches('`').to_string();
    assert!(token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit()), "{token}");
    let path = world.path("run/tessera").join(format!("{}.token", s.address.replace(':', "-")));
    assert!(file.ends_with(&path.display().to_string()), "{file}");
    assert_eq!(fs::read_to_string(&path).unwrap().trim(), token);
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    // A client with the token may ask. The link works too, for requests that change nothing.
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let sql = b"SELECT sum(arange(5)) AS s";
    assert_eq!(s.status("POST", "/v1/query?format=csv", &bearer, sql), 200);
    let linked = link.split(&s.address).nth(1).unwrap();
    assert_eq!(s.status("GET", linked, "", b""), 200, "{linked}");
    assert_eq!(s.status("GET", &linked.replace(&token, "x"), "", b""), 401);
    let linked = format!("/v1/query?format=csv&token={token}");
    assert_eq!(s.status("POST", &linked, "", sql), 401);
    assert_eq!(s.status("POST", "/v1/query", "", sql), 401);
    // Clients of the same user find it, also by another name; those of others do not.
    let port = s.address.split(':').nth(1).unwrap();
    for url in [format!("http://{}", s.address), format!("http://localhost:{port}")] {
        let out = world.query(&["--connect", &url, "SELECT sum(arange(5)) AS s"], &[]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(String::from_utf8_lossy(&out.stdout), "s\n10\n");
    }
    let url = format!("http://{}", s.address);
    let elsewhere = world.at("elsewhere");
    let out = world.query(&["--connect", &url, "SELECT 1"], &[("XDG_RUNTIME_DIR", &elsewhere)]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("error[unauthorized]"));
    // Another start has another one, and it goes with its server.
    let again = world.serve(&["serve"], &[]);
    assert!(!again.told.iter().any(|line| line.contains(&token)));
    drop(again);
    let pid = nix::unistd::Pid::from_raw(s.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    until("the file goes", Duration::from_secs(30), || !path.exists());
}

#[test]
fn wrong_tokens_are_braked() {
    let world = World::new();
    let s = world.serve(&["serve"], &[("TESSERA_TOKEN", "right")]);
    let ask = |token: &str| {
        s.ask("GET", "/v1/tensors", &format!("Authorization: Bearer {token}\r\n"), b"")
    };
    for i in 0..10 {
        assert_eq!(ask(&format!("guess{i}")).0, 401);
    }
    // Now not even the right one is looked at.
    for token in ["guess", "right"] {
        let (status, head, body) = ask(token);
        assert_eq!((status, code(&body).as_str()), (429, "too_many_tries"), "{body}");
        assert!(head.contains("retry-after: 1"), "{head}");
    }
    assert_eq!(s.status("GET", "/healthz", "", b""), 200);
    std::thread::sleep(Duration::from_millis(1100));
    let guessed = Instant::now();
    assert_eq!(ask("guess").0, 401);
    std::thread::sleep(Duration::from_millis(1100));
    let (status, late) = (ask("right").0, guessed.elapsed() > Duration::from_secs(2));
    assert!(status == 429 || late, "{status}: the second wait is longer");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask("right").0, 200);
    assert_eq!(ask("guess").0, 401);
}

#[test]
fn heads_that_can_be_read_in_two_ways_are_refused() {
    let (world, another) = (World::new(), World::new());
    for (s, token) in [
        (world.serve(&["serve", "--no-token"], &[]), ""),
        (another.serve(&["serve"], &[("TESSERA_TOKEN", "t")]), "Authorization: Bearer t\r\n"),
    ] {
        let at = s.address.clone();
        let ask = |line: &str, headers: &str, body: &str| {
            s.raw(format!("{line}\r\nConnection: close\r\n{token}{headers}\r\n{body}").as_bytes())
        };
        let host = format!("Host: {at}\r\n");
        let fine = format!("{host}Content-Length: 13\r\n");
        let query = "POST /v1/query?format=csv HTTP/1.1";
        let (status, _, body) = ask(query, &fine, "SELECT 1 AS a");
        assert_eq!((status, body.as_str()), (200, "a\n1\n"));
        for headers in [
            "Host: [::1].evil.example\r\nContent-Length: 13\r\n".to_string(),
            "Host: [::1]:80evil\r\nContent-Length: 13\r\n".into(),
            "Host: 127.0.0.1:80:evil.example\r\nContent-Length: 13\r\n".into(),
            "Host: \r\nContent-Length: 13\r\n".into(),
            format!("{host}{fine}"),
            format!("{fine}Host: evil.example\r\n"),
            format!("{fine}Authorization: Bearer t\r\nAuthorization: Bearer u\r\n"),
            format!("{fine}Content-Length: 9\r\n"),
            format!("{fine}Content-Type: text/plain\r\nContent-Type: application/json\r\n"),
            format!("{fine}Tessera-Session: a\r\nTessera-Session: b\r\n"),
        ] {
            let (status, _, body) = ask(query, &headers, "SELECT 1 AS a");
            assert_eq!((status, code(&body).as_str()), (400, "bad_request"), "{headers:?}: {body}");
        }
        let other = "GET http://evil.example/v1/tensors HTTP/1.1";
        let (status, _, body) = ask(other, &host, "");
        assert_eq!((status, code(&body).as_str()), (400, "bad_request"), "{body}");
        let same = format!("GET http://{at}/v1/tensors HTTP/1.1");
        assert_eq!(ask(&same, &host, "").0, 200);
    }
}

/// Requests that the HTTP library refuses by itself get errors of this API.
#[test]
fn every_refusal_is_json() {
    let world = World::new();
    let s = world.serve(&["serve", "--no-token"], &[]);
    let host = format!("Host: {}\r\nConnection: close\r\n", s.address);
    let long = "a".repeat(500_000);
    // More than a head may have, and more than a body may.
    let many: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    for (request, status) in [
        ("GARBAGE\r\n\r\n".to_string(), 400),
        (format!("GET /v1/tensors HTTP/9.9\r\n{host}\r\n"), 400),
        (format!("GET /v1/tensors HTTP/1.1\r\n{host}Bad Header\r\n\r\n"), 400),
        (format!("GET /v1/tensors HTTP/1.1\r\n{host}X: {long}\r\n\r\n"), 431),
        (format!("GET /v1/tensors HTTP/1.1\r\n{host}{many}\r\n"), 431),
        (format!("GET /{long} HTTP/1.1\r\n{host}\r\n"), 414),
        (format!("GET /nope HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /v1/statements/%ff%fe HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("BREW /v1/tensors HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("PATCH /v1/query HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("POST /v1/statements HTTP/1.1\r\n{host}Content-Length: 1\r\n\r\n{{"), 400),
        (format!("POST /v1/query HTTP/1.1\r\n{host}Content-Length: 9999999\r\n\r\n{long}"), 413),
        (
            format!(
                "POST /v1/query HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{}",
                (4 << 20) + 1,
                "a".repeat((4 << 20) + 1)
            ),
            413,
        ),
        (
            format!(
                "POST /v1/query HTTP/1.1\r\n{host}Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
            ),
            415,
        ),
        (format!("PUT /v1/tensors/x?nope=1 HTTP/1.1\r\n{host}\r\n"), 400),
    ] {
        let (found, head, body) = s.raw(request.as_bytes());
        let shown = &request[..request.len().min(100)];
        if status == 414 {
            assert!([414, 431].contains(&found), "{shown}: {found}");
        } else {
            assert_eq!(found, status, "{shown}: {body}");
        }
        assert!(head.contains("content-type: application/json"), "{shown}: {head}");
        code(&body);
    }
}

#[test]
fn idle_connections_shut_nobody_out() {
    let world = World::new();
    let s = world.serve(&["serve", "--no-token"], &[]);
    // One asks for something that takes a while; one has asked, and may ask again.
    let host = format!("Host: {}\r\n", s.address);
    let slow = b"SELECT sum(sin(arange(200000000)::float64)) > 0 AS x";
    let mut asks = TcpStream::connect(&s.address).unwrap();
    let head = format!("POST /v1/query?format=csv HTTP/1.1\r\n{host}Connection: close\r\n");
    let head = format!("{head}Content-Length: {}\r\n\r\n", slow.len());
    asks.write_all(&[head.as_bytes(), slow].concat()).unwrap();
    // All connections that the server accepts, or that this process may open.
    let mut idle: Vec<TcpStream> =
        (0..1200).map_while(|_| TcpStream::connect(&s.address).ok()).collect();
    assert!(idle.len() > 900, "{}", idle.len());
    idle.truncate(idle.len().min(1190));
    // Some have begun a head.
    for stream in idle.iter_mut().step_by(3) {
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHo");
    }
    for _ in 0..20 {
        let start = Instant::now();
        assert_eq!(s.status("GET", "/healthz", "", b""), 200);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
    let mut answer = String::new();
    asks.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("x\ntrue\n"), "{answer}");
    drop(idle);
}

#[test]
fn https_with_certificates_that_change() {
    let world = World::new();
    certified(&world, "first");
    certified(&world, "second");
    let (certificate, key) = (world.at("certificate.pem"), world.at("key.pem"));
    let install = |name: &str| {
        fs::copy(world.path(&format!("{name}.certificate.pem")), &certificate).unwrap();
        fs::copy(world.path(&format!("{name}.key.pem")), &key).unwrap();
    };
    install("first");
    let tls = ["serve", "--certificate", &certificate, "--key", &key];
    let s = world.serve(&tls, &[]);
    assert!(s.told[0].starts_with("listening on https://"), "{:?}", s.told);
    let url = format!("https://{}", s.address);
    // The client finds the token as well.
    let ask = |trusted: &str| {
        let authority = world.at(&format!("{trusted}.authority.pem"));
        let sql = "SELECT sum(arange(5)) AS s";
        let out = world.query(&["--connect", &url, sql], &[("SSL_CERT_FILE", &authority)]);
        match out.status.success() {
            true => String::from_utf8(out.stdout).unwrap(),
            false => String::from_utf8(out.stderr).unwrap(),
        }
    };
    assert_eq!(ask("first"), "s\n10\n");
    assert!(ask("second").contains("error[connect]"));
    // Plain HTTP is no answer.
    let mut plain = TcpStream::connect(&s.address).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&bytes));
    // An unusable file changes nothing: the old certificate stays in use.
    std::thread::sleep(Duration::from_millis(1100));
    fs::write(&certificate, "no certificate").unwrap();
    assert_eq!(ask("first"), "s\n10\n");
    install("second");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask("second"), "s\n10\n");
    assert!(ask("first").contains("error[connect]"));
    drop(s);
    // A server does not start without them, nor with half of them, nor with another's key.
    let other = world.at("first.key.pem");
    for (arguments, reason) in [
        (vec!["serve", "--certificate", &certificate], "setting `key`"),
        (
            vec!["serve", "--certificate", &certificate, "--key", "/none.pem"],
            "cannot read `/none.pem`",
        ),
        (vec!["serve", "--certificate", &certificate, "--key", &other], "do not go together"),
    ] {
        let told = world.try_serve(&arguments, &[]).err().unwrap();
        assert!(told.contains(reason), "{told}");
    }
}

#[test]
fn a_warehouse_is_its_owners() {
    let world = World::new();
    // A warehouse from before this rule.
    fs::create_dir(world.path("warehouse")).unwrap();
    fs::set_permissions(world.path("warehouse"), fs::Permissions::from_mode(0o755)).unwrap();
    let s = world.serve(&SERVE, &[]);
    assert_eq!(mode(&world.path("warehouse")), 0o700);
    for sql in [
        "CREATE TENSOR t AS SELECT arange(1000) AS x",
        "CREATE VIEW v AS SELECT x + 1 AS y FROM t",
        "SET tessera.durability = 'all'; SELECT sum(y) AS s FROM v",
    ] {
        let body = json!({"sql": sql, "request_id": sql}).to_string();
        assert_eq!(s.status("POST", "/v1/statements", "", body.as_bytes()), 200, "{sql}");
    }
    let mut seen = 0;
    for file in files(&world.path("warehouse")) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        for above in file.ancestors().skip(1).take_while(|a| a.starts_with(world.path("warehouse")))
        {
            assert_eq!(mode(above), 0o700, "{}", above.display());
        }
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
    // A copy outside of the warehouse has the permissions of the user's other files.
    let out = world.at("out.npy");
    let sql = format!("COPY (SELECT x FROM t) TO '{out}' STORED AS NPY");
    assert!(world.query(&[&sql], &[]).status.success());
    assert_ne!(mode(Path::new(&out)) & 0o044, 0, "the test runs with a usual umask");
    // The command line makes one as a server does.
    let fresh = World::new();
    assert!(fresh.query(&["CREATE TENSOR t AS SELECT arange(3) AS x"], &[]).status.success());
    assert_eq!(mode(&fresh.path("warehouse")), 0o700);
}

#[test]
fn secrets_are_not_on_disk_and_statements_that_need_them_run_again() {
    let world = World::new();
    let s3 = S3::start();
    let environment = s3.environment(Some((KEY, SECRET)));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let sql = "COPY (SELECT arange(6) AS x) TO 's3://bkt/x.zarr' STORED AS ZARR";
    let out = world.query(&[sql], &environment);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // The server has no credentials but those in statements.
    let s = world.serve(&SERVE, &[]);
    let define = format!(
        "CREATE EXTERNAL TABLE b STORED AS ZARR LOCATION 's3://bkt/x.zarr' OPTIONS (\
         'aws.endpoint' 'http://{}', 'aws.allow_http' 'true', 'aws.access_key_id' '{KEY}', \
         'aws.secret_access_key' '{SECRET}')",
        s3.address
    );
    let submit = |s: &Running, sql: &str| {
        let (request_id, _) = sql.split_once(' ').unwrap();
        let body = json!({"sql": sql, "request_id": request_id, "wait_ms": 30000}).to_string();
        let (status, _, body) = s.ask("POST", "/v1/statements", "", body.as_bytes());
        assert_eq!(status, 200, "{body}");
        assert!(!body.contains(SECRET), "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_string()
    };
    submit(&s, &define);
    let id = submit(&s, "SELECT sum(x) AS s FROM b");
    let told = |s: &Running| {
        let (status, _, body) =
            s.ask("GET", &format!("/v1/statements/{id}/result?format=csv"), "", b"");
        (status, body)
    };
    assert_eq!(told(&s), (200, "s\n15\n".into()));
    let secret_free = || {
        let all = files(&world.path("warehouse"));
        assert!(all.iter().any(|f| f.ends_with("key")) && all.len() > 4, "{all:?}");
        for file in all {
            let bytes = fs::read(&file).unwrap();
            let is_there = bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
            assert!(!is_there, "{} has the secret", file.display());
        }
    };
    secret_free();
    // The server is killed. Its record and the catalog have everything that the next one needs.
    drop(s);
    let s = world.serve(&SERVE, &[]);
    until("it is known again", Duration::from_secs(60), || told(&s) == (200, "s\n15\n".into()));
    assert_eq!(s.status("POST", "/v1/query", "", b"SELECT sum(x + 1) AS s FROM b"), 200);
    secret_free();
    // And so does the command line, which shares the warehouse.
    let out = world.query(&["SELECT sum(x) AS s FROM b"], &[]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "s\n15\n");
}
