"""TPC-H beside DuckDB, DataFusion and polars, all with the same threads, over the same Parquet files.

    python benches/tpch.py [--binary target/release/tessera] [--threads 2] [--scale 1] [--only 1 5 18] [--doubles]

The 22 queries in standard SQL, with the parameters of the specification's validation runs. Each statement runs in a
session that is open (`tessera bench`), as the peers' do in a running process: the median of five runs after one that is
not counted. Answers are compared with DuckDB's, in their order. It writes a table in Markdown; a dash is a side that
does not run the query, and the lines below the table say why.

Files are made by tpchgen-cli when they are absent. Their prices are DECIMAL(15, 2); `--doubles` stores them as DOUBLE.
`--peers` leaves out Tessera, `--show` prints Tessera's statements and runs nothing. Needs duckdb, polars, datafusion and
tpchgen-cli from PyPI.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from decimal import Decimal

from rows import ROOT, timed

TABLES = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]

# Seconds after which a statement of Tessera is given up.
PATIENCE = 900

# {table} is the table's path in quotes, or its name where it is registered. The bounds of 6 are written as numbers: in
# binary, 0.06 + 0.01 is below 0.07.
QUERIES = {
    1: """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
            sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty,
            avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
        FROM {lineitem}
        WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
        GROUP BY l_returnflag, l_linestatus
        ORDER BY l_returnflag, l_linestatus""",
    2: """SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM {part}, {supplier}, {partsupp}, {nation}, {region}
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
            AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
            AND ps_supplycost = (
                SELECT min(ps_supplycost) FROM {partsupp}, {supplier}, {nation}, {region}
                WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
                    AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
        LIMIT 100""",
    3: """SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM {customer}, {orders}, {lineitem}
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate
        LIMIT 10""",
    4: """SELECT o_orderpriority, count(*) AS order_count
        FROM {orders}
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH
            AND EXISTS (SELECT * FROM {lineitem} WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority
        ORDER BY o_orderpriority""",
    5: """SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM {customer}, {orders}, {lineitem}, {supplier}, {nation}, {region}
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
            AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
            AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01'
            AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
        GROUP BY n_name
        ORDER BY revenue DESC""",
    6: """SELECT sum(l_extendedprice * l_discount) AS revenue
        FROM {lineitem}
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
            AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    7: """SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
        FROM (
            SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(YEAR FROM l_shipdate) AS l_year,
                l_extendedprice * (1 - l_discount) AS volume
            FROM {supplier}, {lineitem}, {orders}, {customer}, {nation} AS n1, {nation} AS n2
            WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
                AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
                AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY')
                    OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
                AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31') AS shipping
        GROUP BY supp_nation, cust_nation, l_year
        ORDER BY supp_nation, cust_nation, l_year""",
    8: """SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
        FROM (
            SELECT extract(YEAR FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
                n2.n_name AS nation
            FROM {part}, {supplier}, {lineitem}, {orders}, {customer}, {nation} AS n1, {nation} AS n2, {region}
            WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
                AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey
                AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey
                AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
                AND p_type = 'ECONOMY ANODIZED STEEL') AS all_nations
        GROUP BY o_year
        ORDER BY o_year""",
    9: """SELECT nation, o_year, sum(amount) AS sum_profit
        FROM (
            SELECT n_name AS nation, extract(YEAR FROM o_orderdate) AS o_year,
                l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
            FROM {part}, {supplier}, {lineitem}, {partsupp}, {orders}, {nation}
            WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey
                AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey
                AND p_name LIKE '%green%') AS profit
        GROUP BY nation, o_year
        ORDER BY nation, o_year DESC""",
    10: """SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address,
            c_phone, c_comment
        FROM {customer}, {orders}, {lineitem}, {nation}
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01'
            AND o_orderdate < DATE '1993-10-01' + INTERVAL '3' MONTH AND l_returnflag = 'R'
            AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC
        LIMIT 20""",
    11: """SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
        FROM {partsupp}, {supplier}, {nation}
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
        GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
            SELECT sum(ps_supplycost * ps_availqty) * {fraction} FROM {partsupp}, {supplier}, {nation}
            WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
        ORDER BY value DESC""",
    12: """SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END)
                AS high_line_count,
            sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END)
                AS low_line_count
        FROM {orders}, {lineitem}
        WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
            AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01'
            AND l_receiptdate < DATE '1994-01-01' + INTERVAL '1' YEAR
        GROUP BY l_shipmode
        ORDER BY l_shipmode""",
    13: """SELECT c_count, count(*) AS custdist
        FROM (
            SELECT c_custkey, count(o_orderkey)
            FROM {customer} LEFT OUTER JOIN {orders}
                ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
            GROUP BY c_custkey) AS c_orders (c_custkey, c_count)
        GROUP BY c_count
        ORDER BY custdist DESC, c_count DESC""",
    14: """SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
            / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
        FROM {lineitem}, {part}
        WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
            AND l_shipdate < DATE '1995-09-01' + INTERVAL '1' MONTH""",
    15: """WITH revenue (supplier_no, total_revenue) AS (
            SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount))
            FROM {lineitem}
            WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH
            GROUP BY l_suppkey)
        SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
        FROM {supplier}, revenue
        WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
        ORDER BY s_suppkey""",
    16: """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
        FROM {partsupp}, {part}
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
            AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
            AND ps_suppkey NOT IN (SELECT s_suppkey FROM {supplier} WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size
        ORDER BY supplier_cnt DESC, p_brand, p_type, p_size""",
    17: """SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
        FROM {lineitem}, {part}
        WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
            AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM {lineitem} WHERE l_partkey = p_partkey)""",
    18: """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM {customer}, {orders}, {lineitem}
        WHERE o_orderkey IN (SELECT l_orderkey FROM {lineitem} GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
            AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate
        LIMIT 100""",
    19: """SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM {lineitem}, {part}
        WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12'
                AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
                AND l_quantity >= 1 AND l_quantity <= 1 + 10 AND p_size BETWEEN 1 AND 5
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
            OR (p_partkey = l_partkey AND p_brand = 'Brand#23'
                AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
                AND l_quantity >= 10 AND l_quantity <= 10 + 10 AND p_size BETWEEN 1 AND 10
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
            OR (p_partkey = l_partkey AND p_brand = 'Brand#34'
                AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
                AND l_quantity >= 20 AND l_quantity <= 20 + 10 AND p_size BETWEEN 1 AND 15
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')""",
    20: """SELECT s_name, s_address
        FROM {supplier}, {nation}
        WHERE s_suppkey IN (
                SELECT ps_suppkey FROM {partsupp}
                WHERE ps_partkey IN (SELECT p_partkey FROM {part} WHERE p_name LIKE 'forest%')
                    AND ps_availqty > (
                        SELECT 0.5 * sum(l_quantity) FROM {lineitem}
                        WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01'
                            AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR))
            AND s_nationkey = n_nationkey AND n_name = 'CANADA'
        ORDER BY s_name""",
    21: """SELECT s_name, count(*) AS numwait
        FROM {supplier}, {lineitem} AS l1, {orders}, {nation}
        WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
            AND l1.l_receiptdate > l1.l_commitdate
            AND EXISTS (SELECT * FROM {lineitem} AS l2
                WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
            AND NOT EXISTS (SELECT * FROM {lineitem} AS l3
                WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
                    AND l3.l_receiptdate > l3.l_commitdate)
            AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
        GROUP BY s_name
        ORDER BY numwait DESC, s_name
        LIMIT 100""",
    22: """SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
        FROM (
            SELECT substring(c_phone FROM 1 FOR 2) AS cntrycode, c_acctbal
            FROM {customer}
            WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')
                AND c_acctbal > (
                    SELECT avg(c_acctbal) FROM {customer}
                    WHERE c_acctbal > 0.00
                        AND substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17'))
                AND NOT EXISTS (SELECT * FROM {orders} WHERE o_custkey = c_custkey)) AS custsale
        GROUP BY cntrycode
        ORDER BY cntrycode""",
}


def make(data, scale, doubles):
    directory = data / f"tpch{scale:g}"
    if not (directory / "done").exists():
        directory.mkdir(parents=True, exist_ok=True)
        beside = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        program = shutil.which("tpchgen-cli", path=beside)
        if program is None:
            raise SystemExit("there is no tpchgen-cli: pip install tpchgen-cli")
        command = [program, "parquet", "-s", f"{scale:g}", "-o", directory, "--overwrite", "--quiet"]
        subprocess.run(command, check=True)
        (directory / "done").touch()
    if not doubles:
        return directory
    target = data / f"tpch{scale:g}-doubles"
    if not (target / "done").exists():
        target.mkdir(exist_ok=True)
        for table in TABLES:
            cast(directory / f"{table}.parquet", target / f"{table}.parquet")
        (target / "done").touch()
    return target


def cast(source, target):
    """Copies a file with its decimals as doubles, in the same row groups."""
    import pyarrow
    from pyarrow import parquet

    def double(column):
        # By way of texts: pyarrow's own cast is off by a last bit at times.
        decimal = pyarrow.types.is_decimal(column.type)
        return column.cast(pyarrow.string()).cast(pyarrow.float64()) if decimal else column

    file = parquet.ParquetFile(source)
    fields = [f.with_type(pyarrow.float64()) if pyarrow.types.is_decimal(f.type) else f for f in file.schema_arrow]
    schema = pyarrow.schema(fields)
    with parquet.ParquetWriter(target, schema) as writer:
        for i in range(file.num_row_groups):
            columns = [double(c) for c in file.read_row_group(i).columns]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def statement(query, scale, directory=None):
    names = {t: t if directory is None else f"'{directory / t}.parquet'" for t in TABLES}
    return QUERIES[query].format(fraction=f"{0.0001 / scale:.12f}".rstrip("0"), **names)


def tessera_of(binary, threads, scale, directory, repeats):
    common = ["--threads", str(threads)]

    def call(*args):
        try:
            out = subprocess.run([binary, *args], capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {PATIENCE} s") from None
        if out.returncode:
            raise RuntimeError(out.stderr.strip() or f"exit status {out.returncode}")
        return json.loads(out.stdout)

    def run(query):
        sql = statement(query, scale, directory)
        rows = call("query", "--format", "json", *common, sql)["rows"]
        return call("bench", "-n", str(repeats), "--json", *common, sql)["median"], rows

    return run


def duckdb_of(threads, scale, directory, repeats):
    import duckdb

    db = duckdb.connect()
    db.execute(f"SET threads = {threads}")
    return lambda query: timed(lambda: db.execute(statement(query, scale, directory)).fetchall(), repeats)


def datafusion_of(threads, scale, directory, repeats):
    import datafusion

    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))
    for table in TABLES:
        context.register_parquet(table, str(directory / f"{table}.parquet"))

    def run(query):
        seconds, batches = timed(lambda: context.sql(statement(query, scale)).collect(), repeats)
        return seconds, [row for b in batches for row in zip(*(c.to_pylist() for c in b.columns), strict=True)]

    return run


def polars_of(scale, directory, repeats):
    import polars

    context = polars.SQLContext({table: polars.scan_parquet(directory / f"{table}.parquet") for table in TABLES})

    def run(query):
        seconds, frame = timed(lambda: context.execute(statement(query, scale)).collect(), repeats)
        return seconds, frame.rows()

    return run


def same(a, b):
    """Floats to a part in 10^9. A mean or a quotient may be a decimal of few digits: its last digit is left out. Tessera's
    decimals are texts."""
    if isinstance(b, str) or not (isinstance(b, (float, Decimal)) or isinstance(a, (float, Decimal))):
        return a == b or str(a) == str(b)
    a, b = (Decimal(x) if isinstance(x, str) else x for x in (a, b))
    if a is None or b is None:
        return a is b
    exponents = [x.as_tuple().exponent for x in (a, b) if isinstance(x, Decimal)]
    slack = max((10.0**e for e in exponents if e <= -6), default=0.0)
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=slack)


def difference(ours, expected):
    """What the first difference is, if there is one."""
    if len(ours) != len(expected):
        return f"{len(ours)} rows instead of {len(expected)}"
    for i, (x, y) in enumerate(zip(ours, expected, strict=True)):
        if len(x) != len(y) or not all(map(same, x, y)):
            return f"row {i} is {list(x)} instead of {list(y)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target" / "release" / "tessera"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--only", type=int, nargs="+", default=list(QUERIES), choices=QUERIES, metavar="QUERY")
    parser.add_argument("--doubles", action="store_true", help="prices are DOUBLE instead of DECIMAL(15, 2)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "target" / "bench-data", help="where files are kept")
    parser.add_argument("--peers", action="store_true", help="leaves out Tessera")
    parser.add_argument("--show", action="store_true", help="prints the statements and runs nothing")
    options = parser.parse_args()
    # polars reads it when it is imported.
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)
    directory = make(options.data.resolve(), options.scale, options.doubles)
    if options.show:
        print(*(f"-- {query}\n{statement(query, options.scale, directory)};\n" for query in options.only), sep="\n")
        return 0
    common = options.threads, options.scale, directory, options.repeats
    # DuckDB is first: the others' answers are compared with its.
    sides = {
        "DuckDB": duckdb_of(*common),
        "DataFusion": datafusion_of(*common),
        "polars": polars_of(*common[1:]),
    }
    peers = list(sides)
    if not options.peers:
        if shutil.which(options.binary) is None:
            raise SystemExit(f"there is no {options.binary}: cargo build --release")
        sides["Tessera"] = tessera_of(options.binary, *common)
    shown = ([] if options.peers else ["Tessera"]) + peers
    prices = "doubles" if options.doubles else "decimals"
    ratio = [] if options.peers else ["of the best peer"]
    head = [f"scale {options.scale:g}, {prices}, {options.threads} threads", *(f"{s}, s" for s in shown), *ratio]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    remarks, ratios, wrong = [], [], False
    for query in options.only:
        times, expected = {}, None
        for side, run in sides.items():
            try:
                times[side], answer = run(query)
            except Exception as e:  # A side's SQL may lack something.
                remarks.append(f"* {query}, {side}: {' '.join(str(e).split())[:300]}")
                continue
            if side == "DuckDB":
                expected = answer
            elif expected is not None and (why := difference(answer, expected)):
                remarks.append(f"* {query}, {side} differs: {why}")
                wrong |= side == "Tessera"
                # A wrong answer has no time.
                del times[side]
        cells = [f"{times[s]:.3f}" if s in times else "–" for s in shown]
        if not options.peers:
            best = min(times[p] for p in peers if p in times)
            ratios += [best / times["Tessera"]] if "Tessera" in times else []
            cells.append(f"{best / times['Tessera']:.2f}" if "Tessera" in times else "–")
        print(f"| {query} | {' | '.join(cells)} |", flush=True)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"\n{len(ratios)} of {len(options.only)} queries; geometric mean of the ratios {mean:.2f}")
    if remarks:
        print("\n" + "\n".join(remarks))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
