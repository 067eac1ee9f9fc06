"""Rows as text beside DuckDB and polars: CSV and NDJSON, written and read, with the same threads.

    python benches/text.py [--binary target/release/tessera] [--threads 2] [--rows 6000000]

The rows are those of benches/rows.py. Writing includes reading them from Parquet. Each statement runs in a session that is
open (`tessera bench`), as the peers' do in a running process: the median of three runs after one that is not counted.
Sums of what was written are compared with those of the rows. "CPU" is the processor time of one process that runs the
statement, its start and the reading or writing of Parquet included; megabytes of text a second of it are the speed of a
core. It writes a table in Markdown. Needs duckdb and polars from PyPI.
"""

import argparse
import json
import math
import os
import pathlib
import resource
import subprocess

import rows


def tessera(binary, threads, sql):
    command = [binary, "bench", "-n", "3", "--json", "--threads", str(threads), sql]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr)
    return json.loads(out.stdout)["median"]


def cpu(binary, threads, sql):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([binary, "query", "--threads", str(threads), sql], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def sum_of(binary, path):
    sql = f"SELECT sum(v) AS s FROM '{path}'"
    out = subprocess.run([binary, "query", "--format", "json", sql], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["rows"][0][0]


def peers_of(threads, table, format, path):
    import duckdb
    import polars

    db = duckdb.connect()
    db.execute(f"SET threads = {threads}")
    duck = {"csv": "FORMAT csv, HEADER", "ndjson": "FORMAT json"}[format]
    read = {"csv": f"read_csv('{path}')", "ndjson": f"read_ndjson('{path}')"}[format]
    frame = polars.scan_parquet(table)
    scan = {"csv": polars.scan_csv, "ndjson": polars.scan_ndjson}[format]
    sink = {"csv": "sink_csv", "ndjson": "sink_ndjson"}[format]
    aggregate = [polars.len(), polars.col("q").sum()]
    return {
        "write": {
            "DuckDB": lambda: db.execute(f"COPY (SELECT * FROM '{table}') TO '{path}.duckdb' ({duck})"),
            "polars": lambda: getattr(frame, sink)(f"{path}.polars"),
        },
        "read": {
            "DuckDB": lambda: db.execute(f"SELECT count(*), sum(q) FROM {read} WHERE v > 0.5").fetchall(),
            "polars": lambda: scan(path).filter(polars.col("v") > 0.5).select(aggregate).collect(),
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(rows.ROOT / "target" / "release" / "tessera"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=6_000_000)
    options = parser.parse_args()
    # polars reads it when it is imported.
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    directory = rows.make(options.rows)
    table = directory / rows.LINES
    print(f"| {options.rows} rows, {options.threads} threads | Tessera, s | CPU, s | MB/s of CPU | DuckDB, s | polars, s | of the best peer |")
    print("|---|---|---|---|---|---|---|")
    for format in ["csv", "ndjson"]:
        path = pathlib.Path(directory / f"l.{format}")
        write = f"COPY (SELECT * FROM '{table}') TO '{path}' STORED AS {format.upper()} OPTIONS (overwrite true)"
        statements = {"write": write, "read": f"SELECT count(*), sum(q) FROM '{path}' WHERE v > 0.5"}
        peers = peers_of(options.threads, table, format, path)
        for what, sql in statements.items():
            seconds = tessera(options.binary, options.threads, sql)
            used = cpu(options.binary, options.threads, sql)
            if not math.isclose(sum_of(options.binary, path), sum_of(options.binary, table), rel_tol=1e-9):
                raise SystemExit(f"{path}: the sum of what was written is another one")
            times = {peer: rows.timed(run, 3)[0] for peer, run in peers[what].items()}
            speed = path.stat().st_size / 1e6 / used
            shown = " | ".join(f"{times[peer]:.3f}" for peer in times)
            best = min(times.values()) / seconds
            print(f"| {what} {format} | {seconds:.3f} | {used:.3f} | {speed:.0f} | {shown} | {best:.2f} |", flush=True)
        for made in directory.glob(f"l.{format}*"):
            made.unlink()


if __name__ == "__main__":
    main()
