"""Rows beside DuckDB, polars and DataFusion, all with the same threads, over the same Parquet files.

    python benches/rows.py [--binary target/release/tessera] [--threads 2] [--rows 6000000] [--only group]

Each statement runs in a session that is open (`tessera bench`), as the peers' do in a running process: the median of
five runs after one that is not counted. Answers are compared with DuckDB's. It writes a table in Markdown. Needs duckdb,
polars and datafusion from PyPI.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "target" / "bench-data" / "rows"

FILES = {"l": "l.parquet", "o": "o.parquet", "t": "t.parquet"}

STATEMENTS = {
    "filter and sum": "SELECT sum(v * q) AS a FROM l WHERE d >= DATE '1996-01-01' AND d < DATE '1997-01-01' AND q < 24",
    "like": "SELECT count(*) AS a FROM l WHERE s NOT LIKE '%special%requests%'",
    "group by 100": "SELECT g, sum(v) AS a, avg(q) AS b, count(*) AS c FROM l GROUP BY g ORDER BY g",
    "group by date": "SELECT d, g % 4 AS h, sum(v * (1 - q)) AS a, avg(q) AS b FROM l WHERE q > 5 GROUP BY d, g % 4 ORDER BY d, h",
    "group by 1 M": "SELECT count(*) AS a, sum(c) AS b, max(s) AS m FROM (SELECT k, count(*) AS c, sum(v) AS s FROM l GROUP BY k) x",
    "group by text": "SELECT substr(s, 1, 12) AS t, count(*) AS a, avg(v) AS b FROM l GROUP BY substr(s, 1, 12) ORDER BY t",
    "rollup": "SELECT count(*) AS a, sum(t) AS b, max(c) AS m FROM (SELECT g, q, k % 5, sum(v) AS t, count(*) AS c FROM l GROUP BY ROLLUP (g, q, k % 5)) x",
    "most frequent values": "SELECT mode(substr(s, 1, 5)) AS a, mode(least(k % 50, 20)) AS b FROM l",
    "most frequent values by 100": "SELECT g, mode(substr(s, 1, 5)) AS a, mode(least(k % 50, 20)) AS b FROM l GROUP BY g ORDER BY g",
    "19 sums of CASE": f"SELECT {', '.join(f'sum(CASE WHEN g = {i} THEN v ELSE 0 END) AS a{i}' for i in range(19))} FROM l",
    "statistics": "SELECT corr(v, v * q) AS a, covar_pop(v, v * q) AS b, regr_slope(v * q, v) AS c, stddev(v) AS d, var_pop(q) AS e FROM l",
    "statistics by 100": "SELECT g, corr(v, v * q) AS a, covar_pop(v, v * q) AS b, regr_slope(v * q, v) AS c, stddev(v) AS d FROM l GROUP BY g ORDER BY g",
    "1000 totals of few rows": f"SELECT {', '.join(f'sum(v + {i}) AS a{i}' for i in range(1000))} FROM l WHERE id < 1000",
    "count distinct": "SELECT count(DISTINCT k) AS a FROM l",
    "join 1 M": "SELECT o.c, sum(l.v * o.w) AS a FROM l JOIN o ON l.k = o.k GROUP BY o.c ORDER BY o.c",
    "semi-join": "SELECT count(*) AS a, sum(v) AS b FROM l WHERE k IN (SELECT k FROM o WHERE c < 100)",
    "top 100": "SELECT id, v FROM l ORDER BY v DESC, id LIMIT 100",
    "sort": "SELECT sum(x) AS a FROM (SELECT id, v, row_number() OVER (ORDER BY v, id) * (id % 7) AS x FROM l) y",
    "top 3 of each": "SELECT sum(v) AS a FROM (SELECT v, row_number() OVER (PARTITION BY g ORDER BY v DESC) AS r FROM l) x WHERE r <= 3",
    "sum over 1 M partitions": "SELECT max(x) AS a FROM (SELECT sum(v) OVER (PARTITION BY k) AS x FROM l) y",
    "moving average": "SELECT max(x) AS a FROM (SELECT avg(v) OVER (ORDER BY id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS x FROM l) y",
    "replace in 200 texts": "SELECT sum(length(replace(w, 'o', 'xyz'))) AS a, max(upper(w)) AS b FROM t",
    "regular expression over 200 texts": "SELECT regexp_replace(w, '[0-9]+', '#') AS k, count(*) AS a FROM t GROUP BY regexp_replace(w, '[0-9]+', '#') ORDER BY k",
    "ilike over 200 texts": "SELECT count(*) AS a FROM t WHERE w ILIKE '%FOX%9'",
    "in over 200 texts": "SELECT count(*) AS a FROM t WHERE w IN ('quick fox 1', 'slow fox 12', 'final fox 3', 'final fox 33', 'no fox', 'slow fox 38')",
    "numbers of 1000 texts": "SELECT sum(CAST(u AS INT)) AS a FROM t WHERE CAST(u AS INT) > 500",
    "upper of 1 M texts": "SELECT sum(length(upper(x))) AS a FROM t",
    "moving sum of integers": "SELECT max(x) AS a FROM (SELECT sum(g) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS x FROM l) y",
    "range of 7 days": "SELECT max(x) AS a FROM (SELECT sum(v) OVER (PARTITION BY g ORDER BY d::TIMESTAMP RANGE BETWEEN INTERVAL '7 days' PRECEDING AND CURRENT ROW) AS x FROM l) y",
    "growing median": "SELECT sum(x) AS a FROM (SELECT median(v) OVER (PARTITION BY g ORDER BY id ROWS UNBOUNDED PRECEDING) AS x FROM l) y",
}


def make(rows):
    import duckdb

    directory = DATA / str(rows)
    if (directory / "done-3").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    db = duckdb.connect()
    db.execute("SELECT setseed(0.5)")
    keys = max(rows // 6, 1)
    db.execute(f"""COPY (SELECT i AS id, (hash(i) % {keys})::INT AS k, (hash(i * 7) % 100)::INT AS g, random() AS v,
        (hash(i * 3) % 50)::DOUBLE AS q, DATE '1995-01-01' + (hash(i * 5) % 2500)::INT AS d,
        'the ' || ['quick', 'special', 'slow', 'pending', 'final'][1 + (hash(i * 11) % 5)::INT] || ' foxes '
        || ['deliver', 'requests', 'packages', 'accounts'][1 + (hash(i * 13) % 4)::INT] || ' near ' || (hash(i * 17) % 100000) AS s
        FROM range({rows}) t(i)) TO '{directory / FILES['l']}' (ROW_GROUP_SIZE 200000)""")
    db.execute(f"COPY (SELECT i::INT AS k, (hash(i) % 1000)::INT AS c, random() AS w FROM range({keys}) t(i)) TO '{directory / FILES['o']}'")
    db.execute(f"""COPY (SELECT i AS id, ['quick', 'special', 'slow', 'pending', 'final'][1 + (hash(i) % 5)::INT] || ' fox ' || (hash(i * 3) % 40) AS w,
        (hash(i * 5) % 1000)::VARCHAR AS u, 'x' || (hash(i * 7) % {keys}) AS x FROM range({rows}) t(i)) TO '{directory / FILES['t']}' (ROW_GROUP_SIZE 200000)""")
    (directory / "done-3").touch()
    return directory


def timed(run, repeats=5):
    answer = run()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        answer = run()
        times.append(time.perf_counter() - begun)
    return statistics.median(times), answer


def tessera(binary, threads, directory, sql):
    tables = ", ".join(f"{name} AS (SELECT * FROM '{directory / file}')" for name, file in FILES.items())
    sql = f"WITH {tables} {sql}"
    common = ["--threads", str(threads)]
    out = subprocess.run([binary, "bench", "-n", "5", "--json", *common, sql], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(out.stderr)
    answer = subprocess.run([binary, "query", "--format", "json", *common, sql], capture_output=True, text=True)
    return json.loads(out.stdout)["median"], json.loads(answer.stdout)["rows"]


def duckdb_of(threads, directory):
    import duckdb

    db = duckdb.connect()
    db.execute(f"SET threads = {threads}")
    for name, file in FILES.items():
        db.execute(f"CREATE VIEW {name} AS SELECT * FROM '{directory / file}'")
    return lambda sql: timed(lambda: db.execute(sql).fetchall())


def datafusion_of(threads, directory):
    import datafusion

    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    for name, file in FILES.items():
        context.register_parquet(name, str(directory / file))
    return lambda sql: timed(lambda: context.sql(sql).collect())


def polars_of(directory):
    import polars

    frames = {name: polars.scan_parquet(directory / file) for name, file in FILES.items()}
    context = polars.SQLContext(frames)
    return lambda sql: timed(lambda: context.execute(sql).collect())


def agrees(ours, expected):
    def same(a, b):
        if isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9)
        return str(a) == str(b) or a == b

    return len(ours) == len(expected) and all(
        all(same(a, b) for a, b in zip(x, y, strict=True)) for x, y in zip(ours, expected, strict=True)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target" / "release" / "tessera"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    # polars reads it when it is imported.
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    directory = make(options.rows)
    peers = {
        "DuckDB": duckdb_of(options.threads, directory),
        "DataFusion": datafusion_of(options.threads, directory),
        "polars": polars_of(directory),
    }
    print(f"| {options.rows} rows, {options.threads} threads | Tessera, s | one thread, s | {', s | '.join(peers)}, s | of the best peer |")
    print("|---|" + "---|" * (len(peers) + 3))
    for name, sql in STATEMENTS.items():
        if options.only not in name:
            continue
        seconds, ours = tessera(options.binary, options.threads, directory, sql)
        alone, _ = tessera(options.binary, 1, directory, sql)
        times = {}
        for peer, run in peers.items():
            try:
                times[peer], answer = run(sql)
            except Exception:  # A peer's SQL may lack a function.
                continue
            if peer == "DuckDB" and not agrees(ours, answer):
                raise SystemExit(f"{name}: {ours[:2]} is not {answer[:2]}")
        shown = " | ".join(f"{times[peer]:.3f}" if peer in times else "–" for peer in peers)
        print(f"| {name} | {seconds:.3f} | {alone:.3f} | {shown} | {min(times.values()) / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
