"""Statements that people type over one Parquet file, from Python, beside DuckDB with the same threads.

    pip install . duckdb
    python benches/statements.py [--rows 8000000] [--threads 2] [--runs 3] [--only rollup mode]

The file has keys of few values (integers and texts), of a million values, floats and times. Both engines run inside this
process, alternating, and the least time of some runs counts after one that does not. It prints a table in Markdown, and
ends with an error if an answer has another number of rows, or other values in its first row, than DuckDB's.
"""

import argparse
import math
import pathlib
import sys
import tempfile
import time

import duckdb

import tessera_sql as ts

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "target" / "bench-data" / "statements"

COLUMNS = """
    i::bigint AS i, (hash(i) % 100)::int AS k, (hash(i + 7) % 50)::int AS k2,
    ['north', 'south', 'east', 'west', 'centre'][1 + (hash(i + 1) % 5)::int] AS region,
    'city_' || (hash(i + 2) % 300) AS city, 'name_' || (hash(i + 3) % 1000000) AS name,
    (hash(i + 4) % 1000000)::bigint AS big, (hash(i + 5) % 1000) / 7.0 AS x, (hash(i + 6) % 100000) / 13.0 AS y,
    TIMESTAMP '2020-01-01' + INTERVAL (i % 3000000) SECOND AS t
"""

CASES = ", ".join(f"sum(CASE WHEN k % 19 = {j} THEN x ELSE 0 END) AS s{j}" for j in range(19))

STATEMENTS = {
    "two integers": "SELECT k, k2, sum(x), count(*) FROM t GROUP BY k, k2 ORDER BY k, k2",
    "a text": "SELECT city, sum(x), avg(y) FROM t GROUP BY city ORDER BY city",
    "two texts": "SELECT region, city, sum(x) FROM t GROUP BY region, city ORDER BY 1, 2",
    "four keys": "SELECT k, k2, region, k % 2 AS z, sum(x) FROM t GROUP BY k, k2, region, k % 2 ORDER BY 1, 2, 3, 4 LIMIT 10",
    "a million groups": "SELECT big, sum(x) AS s FROM t GROUP BY big ORDER BY s DESC, big LIMIT 10",
    "count distinct": "SELECT count(DISTINCT big) FROM t",
    "distinct texts of groups": "SELECT region, count(DISTINCT name) FROM t GROUP BY region ORDER BY 1",
    "select distinct": "SELECT DISTINCT region, k FROM t ORDER BY 1, 2",
    "rollup": "SELECT region, k, sum(x) FROM t GROUP BY ROLLUP (region, k) ORDER BY 1, 2",
    "cube": "SELECT region, k2, city, count(*) FROM t GROUP BY CUBE (region, k2, city) ORDER BY 1, 2, 3 LIMIT 10",
    "19 sums of CASE": f"SELECT {CASES} FROM t",
    "mode": "SELECT region, mode(k) FROM t GROUP BY region ORDER BY 1",
    "median": "SELECT region, median(x) FROM t GROUP BY region ORDER BY 1",
    "quantile": "SELECT region, quantile_cont(y, 0.9) FROM t GROUP BY region ORDER BY 1",
    "stddev, corr": "SELECT k, stddev(x), corr(x, y), var_pop(y) FROM t GROUP BY k ORDER BY k",
    "FILTER": "SELECT k, count(*) FILTER (WHERE x > 50), sum(y) FILTER (WHERE region = 'north') FROM t GROUP BY k ORDER BY k",
    "arg_max": "SELECT region, arg_max(i, y + i * 1e-9) FROM t GROUP BY region ORDER BY 1",
    "string_agg": "SELECT k, length(string_agg(region, ',')) FROM t WHERE i < 2000000 GROUP BY k ORDER BY k LIMIT 5",
    "part of a text": "SELECT substr(name, 1, 6) AS p, count(*) FROM t GROUP BY p ORDER BY p LIMIT 5",
    "HAVING": "SELECT count(*) FROM (SELECT name, count(*) FROM t GROUP BY name HAVING count(*) > 12) q",
    "hours": "SELECT date_trunc('hour', t) AS h, avg(x) FROM t GROUP BY h ORDER BY h LIMIT 5",
    "IN": "SELECT count(*) FROM t WHERE city IN ('city_1', 'city_7', 'city_99', 'city_12')",
    "LIKE": "SELECT count(*) FROM t WHERE name LIKE '%a%12%'",
    "ILIKE": "SELECT count(*) FROM t WHERE name ILIKE '%NAME_12%'",
    "replace": "SELECT count(*) FROM t WHERE replace(city, '_', '-') LIKE '%-7%'",
    "regexp_matches": "SELECT count(*) FROM t WHERE regexp_matches(city, '_[0-9]7$')",
    "cast of a text": "SELECT sum(CAST(substr(city, 6) AS INT)) FROM t",
    "several conditions": "SELECT sum(x) FROM t WHERE k BETWEEN 10 AND 30 AND region <> 'north' AND y > 100 AND t >= '2020-01-10'",
    "UNION ALL": "SELECT count(*), sum(x) FROM (SELECT x FROM t WHERE k < 50 UNION ALL SELECT y FROM t WHERE k2 < 20) q",
    "join with a million groups": "SELECT sum(a.x * b.y) FROM t a JOIN (SELECT big, max(y) AS y FROM t GROUP BY big) b ON a.big = b.big",
    "join on two texts": "SELECT count(*) FROM t a JOIN (SELECT DISTINCT city, region FROM t WHERE k < 50) b ON a.city = b.city AND a.region = b.region",
    "IN (SELECT …)": "SELECT count(*) FROM t WHERE big IN (SELECT big FROM t WHERE y > 7000)",
    "NOT EXISTS": "SELECT count(*) FROM t a WHERE NOT EXISTS (SELECT 1 FROM t b WHERE b.big = a.big + 1 AND b.k < 3)",
    "top 100": "SELECT i, name, y FROM t ORDER BY y DESC, i LIMIT 100",
    "row_number": "SELECT sum(n) FROM (SELECT row_number() OVER (PARTITION BY city ORDER BY y) AS n FROM t) q",
    "lag": "SELECT sum(d) FROM (SELECT x - lag(x) OVER (PARTITION BY city ORDER BY i) AS d FROM t) q",
    "sum over a million partitions": "SELECT sum(s) FROM (SELECT sum(x) OVER (PARTITION BY big) AS s FROM t) q",
    "moving average": "SELECT sum(s) FROM (SELECT avg(x) OVER (ORDER BY i ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS s FROM t) q",
    "moving median": "SELECT sum(s) FROM (SELECT median(x) OVER (ORDER BY i ROWS BETWEEN 100 PRECEDING AND CURRENT ROW) AS s FROM t WHERE i < 500000) q",
    "RANGE frame": "SELECT sum(s) FROM (SELECT sum(x) OVER (PARTITION BY k ORDER BY big RANGE BETWEEN 100 PRECEDING AND CURRENT ROW) AS s FROM t) q",
    "best three of each": "SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY k ORDER BY y DESC, i) AS r FROM t) q WHERE r <= 3",
}


def data(rows):
    """The file, which DuckDB writes once."""
    path = DATA / f"{rows}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".part")
        duckdb.sql(f"COPY (SELECT {COLUMNS} FROM range({rows}) r(i)) TO '{half}' (FORMAT parquet, ROW_GROUP_SIZE 500000)")
        half.rename(path)
    return path


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def is_same(got, want):
    """Compares numbers to nine digits, as sums depend on their order. Times, texts in one engine, are not compared."""
    if len(got) != len(want):
        return False
    for a, b in zip(got[0], want[0], strict=True):
        if isinstance(b, float | int):
            if not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6):
                return False
        elif isinstance(b, str) and a != b:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=STATEMENTS, default=list(STATEMENTS))
    args = parser.parse_args()
    path = data(args.rows)
    peer = duckdb.connect(config={"threads": args.threads})
    peer.sql(f"CREATE VIEW t AS SELECT * FROM '{path}'")
    wrong = []
    print("| statement | Tessera, ms | DuckDB, ms | Tessera / DuckDB |\n|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as warehouse,
        ts.connect(warehouse=warehouse, threads=args.threads, progress=False) as con,
    ):
        con.execute(f"CREATE VIEW t AS SELECT * FROM '{path}'")
        for name in args.only:
            sql = STATEMENTS[name]
            sides = [lambda sql=sql: con.execute(sql).fetchall(), lambda sql=sql: peer.execute(sql).fetchall()]
            if not is_same(*(side() for side in sides)):
                wrong.append(name)
            times = [[seconds(side) for side in sides] for _ in range(args.runs)]
            ours, theirs = (min(of) for of in zip(*times, strict=True))
            print(f"| {name} | {ours * 1e3:.0f} | {theirs * 1e3:.0f} | {ours / theirs:.2f} |", flush=True)
    if wrong:
        sys.exit(f"other answers than DuckDB's: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
