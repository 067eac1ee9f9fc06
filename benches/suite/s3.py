"""An S3 server on loopback that both sides read from: buckets are directories, every key is accepted.

It knows what readers ask for: GET with ranges, HEAD, and lists. Bodies go from the file to the socket in the kernel.
"""

import atexit
import functools
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_HEAD(self):
        self.object(body=False)

    def do_GET(self):
        url = urlsplit(self.path)
        if "list-type" in url.query:
            return self.listing(unquote(url.path), parse_qs(url.query))
        self.object(body=True)

    def object(self, body: bool):
        path = Path(self.server.top, unquote(urlsplit(self.path).path).lstrip("/"))
        if not path.is_file():
            return self.text(404, "<Error><Code>NoSuchKey</Code></Error>", body)
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            first, last = 0, size - 1
            if asked := self.headers.get("Range"):
                low, _, high = asked.removeprefix("bytes=").partition("-")
                first = int(low) if low else max(size - int(high), 0)
                last = min(int(high), size - 1) if low and high else size - 1
                if first >= size:
                    return self.text(416, "<Error><Code>InvalidRange</Code></Error>", body)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("ETag", f'"{os.fstat(f.fileno()).st_mtime_ns:x}"')
            self.send_header("Last-Modified", self.date_time_string(int(os.fstat(f.fileno()).st_mtime)))
            self.end_headers()
            self.wfile.flush()
            while body and first <= last:
                first += os.sendfile(self.connection.fileno(), f.fileno(), first, last + 1 - first)

    def listing(self, bucket: str, query):
        top = Path(self.server.top, bucket.lstrip("/"))
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys, prefixes = [], set()
        base = top / prefix if prefix.endswith("/") else (top / prefix).parent
        for at, directories, names in os.walk(base, followlinks=True):
            for name in [*names, *(d + "/" for d in directories if delimiter)]:
                key = os.path.relpath(os.path.join(at, name), top) + ("/" if name.endswith("/") else "")
                if not key.startswith(prefix):
                    continue
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
                elif not key.endswith("/"):
                    keys.append((key, os.path.getsize(os.path.join(at, name))))
            if delimiter:
                break
        told = "".join(
            f"<Contents><Key>{escape(k)}</Key><LastModified>2000-01-01T00:00:00Z</LastModified><Size>{n}</Size></Contents>"
            for k, n in sorted(keys)
        )
        told += "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in sorted(prefixes))
        self.text(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{told}</ListBucketResult>", True)

    def text(self, status: int, text: str, body: bool):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data) if body else 0))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        """Says nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_):
        """A client that goes away is no fault of the server."""


def serve(top: str):
    """Serves a directory, tells its port, and ends when the input does."""
    import threading

    server = Server(("127.0.0.1", 0), Handler)
    server.top = top
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


@functools.cache
def running(top: str) -> str:
    """Starts a server as a process of its own; its address. It ends with this process."""
    process = subprocess.Popen([sys.executable, __file__, top], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.stdin.close)
    port = process.stdout.readline().strip()
    if not port:
        raise OSError(f"the S3 server ended with {process.wait()}")
    return f"127.0.0.1:{port}"


def start(context, objects) -> dict[str, str]:
    """The variables of a client of a server whose bucket `bench` holds the named files."""
    top = context.data / "s3"
    bucket = top / "bench"
    bucket.mkdir(parents=True, exist_ok=True)
    for name, path in objects.items():
        link = bucket / name
        if link.is_symlink() and link.resolve() != path.resolve():
            link.unlink()
        if not link.exists():
            os.symlink(path.resolve(), link)
    return {
        "AWS_ENDPOINT_URL": f"http://{running(str(top))}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark-secret",
    }


if __name__ == "__main__":
    serve(sys.argv[1])
