"""sql/cells/few_values: functions over texts and days that repeat, over texts that do not, and over slices of them, expected from DuckDB."""

import duckdb

from .core import DATA, EXTERNAL, Script

con = duckdb.connect()
con.execute("SET threads = 1")
con.execute(f"CREATE VIEW kinds AS SELECT * FROM '{DATA / 'tables/kinds.parquet'}'")

f = Script(
    "cells/few_values",
    "Functions over columns with few distinct values. Expected values from DuckDB.",
    setup=[EXTERNAL.format("kinds", "PARQUET", "tables/kinds.parquet")],
    chunks="4KiB",
)


def same(sql, *spelled):
    """`spelled` are pairs of ours and DuckDB's. Texts are in quotes: empty ones, and blanks, are seen."""
    duck = sql
    for ours, theirs in spelled:
        duck = duck.replace(ours, theirs)
    rows = con.execute(duck).fetchall()
    assert rows and any(v not in (None, 0, False) for row in rows for v in row), duck
    f.rows(sql, rows)


CHAR = ("to_char(", "strftime(")
quoted = lambda text: f"'<' || {text} || '>'"

f.note("Items, of which some rows are taken.")
TEXTS = [
    "upper(s)", "lower(s)", "upper(trim(s))", "replace(s, 'a', 'xyz')", "regexp_replace(s, '[a-z]+', '*')", "split_part(s, ',', 2)",
    "substr(s, 3)", "substr(s, 8, 20)", "reverse(s)", "lpad(s, 14, '.')", "concat(s, '!', s)", "coalesce(upper(s), 'none')",
    "CASE WHEN s IS NULL THEN 'null' WHEN s = '' THEN 'empty' WHEN s LIKE '%twelve%' THEN 'long' ELSE lower(s) END",
]
for some in (TEXTS[:1], TEXTS[1:5], TEXTS[5:9], TEXTS[9:]):
    items = ", ".join(f"{quoted(text)} AS v{k}" for k, text in enumerate(some))
    same(f"SELECT n, {items} FROM kinds WHERE n % 97 < 2 ORDER BY n LIMIT 40")
same("SELECT n, length(s) AS a, octet_length(s) AS b, ascii(s) AS c, length(replace(s, 'e', 'ee')) AS d FROM kinds WHERE n % 89 = 0 ORDER BY n", ("octet_length(s)", "strlen(s)"), ("ascii(s)", "CASE WHEN s = '' THEN 0 ELSE ascii(s) END"))

f.note("Keys and arguments.")
same(f"SELECT {quoted('upper(s)')} AS k, count(*) AS c, min(n) AS a, sum(n) AS b FROM kinds GROUP BY upper(s) ORDER BY k NULLS LAST")
same("SELECT length(regexp_replace(s, '[^a-z]', '')) AS k, count(*) AS c, count(DISTINCT lower(s)) AS d FROM kinds GROUP BY k ORDER BY k NULLS LAST")
same("SELECT sum(length(replace(s, 'e', 'ee'))) AS a, max(upper(s)) AS b, min(upper(s)) FILTER (WHERE s ILIKE '%TWELVE%ONE') AS c, count(*) FILTER (WHERE regexp_matches(s, '[0-9]')) AS d FROM kinds")
same("SELECT split_part(s, ' ', 1) = '' AS e, code::int % 5 AS k, count(*) AS c, sum(code::int) AS v FROM kinds GROUP BY e, k ORDER BY e NULLS LAST, k NULLS LAST")
same("SELECT count(DISTINCT upper(s)) AS a, count(DISTINCT s || code) AS b, count(DISTINCT upper(own)) AS c FROM kinds")

f.note("All values of a group, the most frequent one, and those of its first and last row by a key.")
same("SELECT code, median(n::double) AS a, round(quantile_cont(n * 0.25::double, 0.9), 6) AS b, median(n::double) FILTER (WHERE n % 7 > 2) AS c, count(*) AS d FROM kinds GROUP BY code ORDER BY code NULLS LAST")
same("SELECT n % 3 AS k, median(day::timestamp) AS a, mode(n * n % 27 % 7) AS b FROM kinds GROUP BY k ORDER BY k")
same("SELECT code, arg_max(n, n * 7919 % 10007) AS a, arg_min(own, n * 7919 % 10007) AS b, max_by(day, -n) AS c, arg_max(n, own) AS d FROM kinds GROUP BY code ORDER BY code NULLS LAST")
same("SELECT code, n % 3 AS k, count(*) AS c, sum(n * 0.25::double) AS t, min(n) AS a, avg(n) AS b FROM kinds WHERE code < '0009' GROUP BY ROLLUP (code, n % 3) ORDER BY code NULLS LAST, k NULLS LAST")

f.note("Conditions.")
for condition in (
    "s ILIKE '%MORE THAN%one'", "s NOT ILIKE 'A%'", "s LIKE '_1'", "regexp_matches(s, '^[0-9]{4}-')", "NOT regexp_matches(s, 'a|e')",
    "s SIMILAR TO 'a|A1|[0-9-]+'", "s NOT SIMILAR TO '[a-z ]*'", "s SIMILAR TO '[a-z]' || '.*'", "'a' SIMILAR TO s",
    "s IN ('a', '', 'b,c,d', 'a text of more than twelve bytes, two', 'x')", "s NOT IN ('a', 'A1', '2019-12-31', ' padded ')",
    "upper(s) = 'A1' OR trim(s) = 'padded'", "lower(s) >= 'b' AND length(s) > 2 AND n > 700", "replace(s, ' ', '') <> s", "(upper(s) = s) IS NULL",
    "code::int > 20", "upper(s) || code > 'B'", "upper(s) < upper(own)",
):
    same(f"SELECT count(*) AS c, min(n) AS a, max(n) AS b, sum(n) AS t FROM kinds WHERE {condition}")
same("SELECT count(*) AS c, sum(n) AS t FROM kinds WHERE s IN ('a', 'A1', 'no', 'b,c,d', NULL)")
same("SELECT count(*) AS c, count(a) AS d FROM (SELECT s NOT IN ('a', 'A1', 'no', 'b,c,d', NULL) AS a FROM kinds) q")

f.note("Days, codes and times.")
same("SELECT to_char(day, '%Y-%m') AS k, count(*) AS c, min(n) AS a FROM kinds GROUP BY k ORDER BY k NULLS LAST", CHAR)
same("SELECT n, to_char(day, '%d/%m') AS a, code::int AS b, code::double / 4 AS c FROM kinds WHERE n % 101 = 1 ORDER BY n", CHAR)
same("SELECT d, count(*) AS c FROM (SELECT s::date AS d FROM kinds WHERE s LIKE '20%') q GROUP BY d ORDER BY d")
f.error("SELECT s::int AS v FROM kinds WHERE n > 1", "execution: cannot convert '")

f.note("Texts that do not repeat.")
same("SELECT sum(length(upper(own))) AS a, max(replace(own, 'own ', 'x')) AS b, count(*) FILTER (WHERE own ILIKE 'OWN 1%') AS c FROM kinds")
same("SELECT n, upper(own) AS a, split_part(own, ' ', 2)::int AS b FROM kinds WHERE n % 151 = 0 ORDER BY n")

f.note("Over rows of joins, subqueries and series.")
same("SELECT upper(a.s) AS k, count(*) AS c FROM kinds a JOIN kinds b ON a.n = b.n + 1 WHERE replace(b.s, 'a', '') = '' GROUP BY k ORDER BY k NULLS LAST")
same("SELECT k, count(*) AS c FROM (SELECT upper(s) AS k, n FROM kinds WHERE n < 2500) q WHERE k LIKE '%A%' AND lower(k) <> 'a' GROUP BY k ORDER BY k")
same("SELECT lower(u) AS k, count(*) AS c FROM (SELECT upper(s) AS u FROM kinds UNION ALL SELECT own AS u FROM kinds WHERE n < 5) q GROUP BY k ORDER BY k NULLS LAST")
same("SELECT replace(CASE i % 3 WHEN 0 THEN 'abc' WHEN 1 THEN 'a long text with an a' END, 'a', 'A') AS k, count(*) AS c FROM range(20000) r(i) GROUP BY k ORDER BY k NULLS LAST")
same("SELECT upper(s) AS k, row_number() OVER (PARTITION BY upper(s) ORDER BY n) AS r FROM kinds WHERE n < 30 ORDER BY n")
