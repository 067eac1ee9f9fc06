"""What costs time when there is little to compute: chunks, statements, requests, processes."""

import http.client
import importlib
import subprocess
import sys

import numpy as np

from ..cells import array, sql, temp
from ..peers import bound, jit
from ..workload import Workload


def workloads(context):
    n = context.cells(1e5)

    def many():
        x = array((n * 100,))
        return np.split(x, n)

    yield Workload(
        "sum over 10^5 chunks of 100 cells", "SELECT sum(x) AS r FROM x",
        setup=temp("x", f"rechunk({sql((n * 100,))}, [100])"), held=800.0 * n,
        peers={
            "numpy, a loop": lambda: bound(lambda parts: sum(p.sum() for p in parts), many()),
        },
    )
    yield Workload(
        "mean over axis 0 of 10^4 chunks of 1000 cells", "SELECT mean(x, 0) AS r FROM x",
        setup=temp("x", f"rechunk({sql((context.cells(1e5), 100))}, [10, 100])"), held=800.0 * n,
        peers={
            "numpy, a loop": lambda: bound(lambda parts: sum(p.sum(0) for p in parts) / n, np.split(array((n, 100)), max(n // 10, 1))),
        },
    )
    runs = max(int(1000 * min(context.scale * 10, 1)), 10)
    tiny = temp("t", "arange(1000)::float64")

    def loop(f):
        def work():
            for i in range(runs):
                last = f(i)
            return np.asarray(last)

        return lambda: work

    def duckdb():
        db = importlib.import_module("duckdb").connect()
        db.execute("CREATE TABLE t AS SELECT i::double AS t FROM range(1000) r(i)")
        return loop(lambda i: db.execute(f"SELECT sum(t * {i}) AS r FROM t").fetchall()[0][0])()

    def polars():
        pl = importlib.import_module("polars")
        frame = pl.DataFrame({"t": np.arange(1000.0)})
        return loop(lambda i: frame.lazy().select((pl.col("t") * i).sum()).collect().item())()

    x = np.arange(1000.0)
    session = {
        "duckdb": duckdb,
        "numpy": loop(lambda i: (x * i).sum()),
        "polars": polars,
        "jax": lambda: loop(lambda i, f=jit_scaled(x): f(float(i)))(),
    }
    yield Workload(
        f"{runs} small queries in a session", ";\n".join(f"SELECT sum(t * {i}) AS r FROM t" for i in range(runs)),
        setup=tiny, peers=session, beside=("numpy", "jax"), rtol=1e-6,
    )

    def server():
        process = subprocess.Popen(
            [str(context.binary), "--warehouse", str(context.data / "warehouse"), "serve", "--listen", "127.0.0.1:0",
             "--no-token", "--allow-read", "*"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        address = listening(process)
        connection = http.client.HTTPConnection(address)

        def ask(text, headers={}):
            connection.request("POST", "/v1/query?format=csv", text, headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise OSError(body.decode())
            return body

        connection.request("POST", "/v1/sessions")
        session = importlib.import_module("json").loads(connection.getresponse().read())["id"]
        own = {"Tessera-Session": session}
        ask(tiny, own)
        importlib.import_module("atexit").register(process.terminate)
        return loop(lambda i: float(ask(f"SELECT sum(t * {i}) AS r FROM t", own).split()[-1]))()

    yield Workload(
        f"{runs} small queries over HTTP", "", ours=server,
        peers={"duckdb, without HTTP": duckdb}, beside=("duckdb, without HTTP",), rtol=1e-6,
    )

    def start(command):
        def work():
            return np.float64(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])

        return lambda: work

    yield Workload(
        "a process that answers one query", "",
        ours=start([str(context.binary), "--warehouse", str(context.data / "warehouse"), "query", "--format", "csv", "SELECT sum(arange(1000)) AS s"]),
        peers={
            "python, numpy": start([sys.executable, "-c", "import numpy; print(numpy.arange(1000).sum())"]),
            "python, duckdb": start([sys.executable, "-c", "import duckdb; print(duckdb.execute('SELECT sum(i) FROM range(1000) r(i)').fetchall()[0][0])"]),
        },
    )


def jit_scaled(x):
    from ..peers import jax

    j, jnp = jax()
    held = jnp.asarray(x)
    f = j.jit(lambda x, i: (x * i).sum())
    return lambda i: f(held, i).block_until_ready()


def listening(process) -> str:
    """The address that a server says it listens on."""
    for line in process.stderr:
        if "127.0.0.1:" in line:
            return "127.0.0.1:" + line.split("127.0.0.1:")[1].split()[0].strip("/\"',")
    raise OSError(f"the server ended with {process.wait()}")
