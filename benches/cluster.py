"""A server and workers beside the server alone and Dask.distributed, with as many processes and threads each.

    python benches/cluster.py --binary target/release/tessera --data DIRECTORY [--workers 2] [--only 1,3] [--dask]
    python benches/cluster.py --data DIRECTORY --tpch target/bench-data/tpch1 --only 8,9,10

Prints a line for each statement: medians of three runs after one that is not counted, and the peak memory of the larger
worker. Servers listen on free ports of the loopback interface and are ended with the script. Dask needs `dask` and
`distributed`; the file of 4 GB that the first statement reads is made with `zarr` if it is not there. With the files of
`benches/tpch.py` there are three queries over tables, whose rows workers compute.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import tpch

RUNS = 3
TIMEOUT_S = 600


def statements(rows):
    """Name, SQL, and how Dask says it."""
    return [
        (
            "rechunk of 4 GB of Zarr, rows to columns, and differences",
            f"SELECT sum(abs(diff(rechunk(rows, [20000, 500]), axis => 0))) AS s FROM '{rows}'",
            lambda da, r: abs(da.diff(da.from_zarr(str(rows)).rechunk((20000, 500)), axis=0)).sum(),
        ),
        (
            "product, 8192 by 8192",
            "SELECT sum(a @ b) AS s FROM (SELECT random_uniform([8192, 8192], seed => 1, chunks => [2048, 2048]) AS a, "
            "random_uniform([8192, 8192], seed => 2, chunks => [2048, 2048]) AS b) t",
            lambda da, r: (r((8192, 8192), (2048, 2048)) @ r((8192, 8192), (2048, 2048))).sum(),
        ),
        (
            "x + transpose(x), 4e8 cells",
            "SELECT sum(abs(x + transpose(x) - 1)) AS s FROM "
            "(SELECT random_uniform([20000, 20000], seed => 1, chunks => [1000, 1000]) AS x) t",
            lambda da, r: (lambda x: abs(x + x.T - 1).sum())(r((20000, 20000), (1000, 1000))),
        ),
        (
            "anomaly from a climatology, 20 x 365 x 200 x 200",
            "SELECT max(abs(x - mean(x, 0))) AS s FROM "
            "(SELECT random_normal([20, 365, 200, 200], seed => 1, chunks => [1, 73, 200, 200]) AS x) t",
            lambda da, r: (lambda x: abs(x - x.mean(0)).max())(
                da.random.default_rng(1).standard_normal((20, 365, 200, 200), chunks=(1, 73, 200, 200))
            ),
        ),
        (
            "standardised columns, 4e8 cells",
            "SELECT sum(abs((x - mean(x, 0)) / std(x, 0))) AS s FROM "
            "(SELECT random_uniform([40000, 10000], seed => 1, chunks => [1000, 1000]) AS x) t",
            lambda da, r: (lambda x: abs((x - x.mean(0)) / x.std(0)).sum())(r((40000, 10000), (1000, 1000))),
        ),
        (
            "sum of 20,000 chunks",
            "SELECT sum(x) AS s FROM (SELECT random_uniform([200000000], seed => 1, chunks => [10000]) AS x) t",
            lambda da, r: r((200000000,), (10000,)).sum(),
        ),
        (
            "rechunk of 512 MB of running sums, rows to columns, and differences",
            "SELECT sum(abs(diff(rechunk(cumsum(random_uniform([8000, 8000], seed => 1, chunks => [400, 8000]), 1), "
            "[8000, 400]), axis => 0))) AS s",
            lambda da, r: abs(
                da.diff(r((8000, 8000), (400, 8000)).cumsum(axis=1).rechunk((8000, 400)), axis=0)
            ).sum(),
        ),
    ]


def tables(directory):
    """As `statements`, over the files of TPC-H."""
    names = {1: "groups of lineitem", 6: "a sum of lineitem", 14: "lineitem joined with part"}
    return [(f"TPC-H {q}: {name}", tpch.statement(q, 1, directory), None) for q, name in names.items()]


def make_rows(path):
    import numpy
    import zarr

    array = zarr.create_array(path, shape=(20000, 25000), chunks=(400, 25000), dtype="f8", compressors=None)
    numbers = numpy.random.default_rng(1)
    for first in range(0, 20000, 400):
        array[first : first + 400] = numbers.random((400, 25000))


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def peak_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def median_s(run, runs=RUNS):
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


class Cluster:
    """A server with as many threads as there are workers, and the workers, with a thread each."""

    def __init__(self, binary, workers, memory):
        self.home = tempfile.TemporaryDirectory()
        self.processes = []
        self.http, join = free_port(), f"127.0.0.1:{free_port()}"
        environment = dict(os.environ, XDG_CONFIG_HOME=self.home.name)

        def start(*arguments):
            command = [binary, "--warehouse", f"{self.home.name}/warehouse", *arguments]
            self.processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))

        start("--threads", str(workers), "--memory-limit", "8GiB", "serve", "--no-token", "--allow-read", "*", "--cluster",
              "--cluster-listen", join, "--listen", f"127.0.0.1:{self.http}")
        self.wait(lambda: self.ask("SELECT 1 AS a"))
        for _ in range(workers):
            start("--threads", "1", "--memory-limit", memory, "worker", "--no-supervisor", "--scheduler", join)
        self.wait(lambda: self.ask("SHOW WORKERS").count(",alive,") == workers)

    def wait(self, is_there):
        for _ in range(200):
            with contextlib.suppress(OSError):
                if is_there():
                    return
            time.sleep(0.1)
        raise TimeoutError("the cluster is not there")

    def ask(self, sql):
        url = f"http://127.0.0.1:{self.http}/v1/query?format=csv"
        request = urllib.request.Request(url, data=sql.encode(), method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait()
        self.home.cleanup()


def tessera(binary, workers, memory, sql):
    with Cluster(binary, workers, memory) as cluster:
        spread = f"SET tessera.spread = 'all'; {sql}"
        cluster.ask(spread)
        there = median_s(lambda: cluster.ask(spread))
        peak = max(peak_mib(p.pid) for p in cluster.processes[1:])
        alone = median_s(lambda: cluster.ask(f"SET tessera.spread = 'none'; {sql}"))
        told = cluster.ask(f"SET tessera.spread = 'all'; EXPLAIN ANALYZE {sql}")
        shown = (line.strip() for line in told.splitlines())
        moved = next((line for line in shown if "expected)" in line or "tasks of rows" in line), "")
    return alone, there, peak, moved


def dask(workers, say):
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit="8GiB", dashboard_address=None)
    with cluster, Client(cluster):
        seconds = median_s(lambda: say(da, lambda shape, chunks: da.random.default_rng(1).random(shape, chunks=chunks)).compute())
        peak = max(peak_mib(worker.pid) for worker in cluster.workers.values())
    return seconds, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/tessera")
    parser.add_argument("--data", type=Path, required=True, help="directory of the 4 GB file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="4GiB", help="what each worker may take")
    parser.add_argument("--only", help="numbers of statements, from 1, with commas")
    parser.add_argument("--tpch", type=Path, help="directory of the files of benches/tpch.py")
    parser.add_argument("--dask", action="store_true", help="beside Dask.distributed")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    rows = options.data.absolute() / "rows.zarr"
    wanted = [int(n) for n in options.only.split(",")] if options.only else None
    every = statements(rows) + (tables(options.tpch.absolute()) if options.tpch else [])
    for number, (name, sql, say) in enumerate(every, 1):
        if wanted is not None and number not in wanted:
            continue
        if number == 1 and not rows.exists():
            make_rows(rows)
        alone, there, peak, moved = tessera(os.path.abspath(options.binary), options.workers, options.memory, sql)
        print(f"{number} {name}: alone {alone:.3f} s, cluster {there:.3f} s, worker {peak:.0f} MiB; {moved}", flush=True)
        if options.dask and say:
            seconds, peak = dask(options.workers, say)
            print(f"  dask {seconds:.3f} s ({seconds / there:.1f}), worker {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
