"""sql/cells/lists: functions of lists, structs and maps over rows, expected from DuckDB."""

import re

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW n AS SELECT * FROM (VALUES (1, [3, 1, NULL, 2, 1], ['b', 'a', NULL, 'b'], [0.5::double, 2.0::double, NULL]), (2, [], [], []), (3, NULL, NULL, NULL), (4, [7], ['z'], ['nan'::double, 1.0::double]), (5, [NULL], [NULL], ['-0.0'::double, 0.0::double])) v(id, l, s, x)",
    "CREATE VIEW st AS SELECT * FROM (VALUES (1, {'a': 1, 'b': 'x'}), (2, {'a': 2, 'b': NULL}), (3, NULL)) v(id, s)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/lists", "Functions of lists, structs and maps over rows. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def same(sql, duck=None):
    rows = con.execute(re.sub(r"\b(\w+) -> ", r"lambda \1: ", duck or sql)).fetchall()
    assert rows, sql
    f.rows(sql, rows)


def texts(*lists, of="n", more=""):
    """Lists as texts, with N for NULL."""
    shown = (f"'<' || array_to_string(list_transform({e}, e -> coalesce(e::text, 'N')), ',') || '>' AS c{k}" for k, e in enumerate(lists))
    same(f"SELECT id, {', '.join(shown)} FROM {of}{more} ORDER BY id")


def values(*items, of="n"):
    same(f"SELECT id, {', '.join(f'{e} AS c{k}' for k, e in enumerate(items))} FROM {of} ORDER BY id")


f.note("Aggregates of the elements of lists: NULL of NULL, and what the aggregate is of no rows for a list without elements.")
values("list_min(l)", "list_max(l)", "list_sum(l)", "list_count(l)", "list_unique(l)", "list_mode(l)")
values("list_avg(l)", "list_median(l)", "list_var_pop(l)", "list_var_samp(l)", "list_stddev_pop(l)", "list_stddev_samp(l)")
values("list_min(s)", "list_max(s)", "list_count(s)", "list_unique(s)", "list_mode(s)", "list_string_agg(s)", "list_any_value(s)", "list_product(l)")
values("list_min(x)", "list_max(x)", "list_sum(x)", "list_avg(x)", "list_median(x)", "list_count(x)", "array_unique(x)")
values("list_bit_and(l)", "list_bit_or(l)", "list_bit_xor(l)", "list_bool_and(list_transform(l, e -> e > 1))", "list_bool_or(list_transform(l, e -> e > 1))")
values("list_aggregate(l, 'sum')", "array_aggregate(l, 'max')", "list_aggr(l, 'avg')", "list_aggregate(l, 'stddev')", "list_aggregate(l, 'count')", "list_aggregate(l, 'first')", "list_aggregate(l, 'last')")
values("list_aggregate(l, 'quantile_cont', 0.25)", "list_aggregate(l, 'quantile_disc', 0.5)", "list_aggregate(s, 'string_agg', '-')", "array_aggr(l, 'min')", "aggregate(l, 'sum')")
same("SELECT sum(list_sum(l)) AS a, max(list_max(x)) FILTER (WHERE id < 4) AS b FROM n WHERE list_count(l) > 0")
same("SELECT list_sum(range(i)) AS s, list_median(range(i)) AS m, count(*) AS c FROM (SELECT i % 7 AS i FROM range(20000) r(i)) q GROUP BY s, m ORDER BY s, m")
same("SELECT list_max(l) AS a FROM (VALUES (['2020-01-02'::date, '2021-01-01'::date])) v(l)")
f.error("SELECT list_sum(id) FROM n", "type_error: `list_sum` takes a list, not int64")
f.error("SELECT list_sum(s) FROM n", "type_error: `list_sum` applies `sum`, which does not take elements of type text")
f.error("SELECT list_string_agg(s, id::text) FROM n", ".*`list_string_agg` needs a constant after its list")
f.error("SELECT list_aggregate(l, 'nothing') FROM n", "unknown_name")

f.note("Elements, positions count from 1, and slices, which include both ends.")
values("l[1]", "l[-1]", "l[5]", "l[6]", "l[0]", "l[-9]", "list_first(l)", "list_last(l)", "list_extract(l, 4)", "list_element(s, -1)")
texts("l[2:3]", "l[:2]", "l[2:]", "l[-2:]", "l[:-2]", "l[1:5:2]", "l[:]")
texts("l[0:2]", "l[4:9]", "l[9:]", "l[3:2]", "l[-9:2]", "l[:-9]", "l[::-1]", "l[5:1:-2]", "l[id:]")
texts("list_slice(l, 2, 3)", "array_slice(l, -3, -2)", "list_slice(l, 1, NULL)", "list_slice(l, 1, 5, 3)", "s[2:3]", "l[2:][:2]", "list_slice(l, 9, 2, -1)")
f.error("SELECT l[1:2:0] FROM n", ".*step of a slice is 0")

f.note("Characters of texts.")
TEXTS = "(SELECT * FROM (VALUES (1, 'hello'), (2, ''), (3, NULL), (4, 'añb')) v(id, t)) q"
values("'<' || t[1] || '>'", "'<' || t[-1] || '>'", "'<' || t[9] || '>'", "'<' || t[0] || '>'", "'<' || list_extract(t, 2) || '>'", "'<' || t[id] || '>'", of=TEXTS)
values("'<' || t[2:4] || '>'", "'<' || t[:2] || '>'", "'<' || t[-3:] || '>'", "'<' || t[:-2] || '>'", "'<' || t[3:1] || '>'", "'<' || t[-9:2] || '>'", "'<' || array_slice(t, 2, NULL) || '>'", "'<' || array_slice('hello', id, 4) || '>'", of=TEXTS)
same("SELECT upper(t[1]) || t[2:] AS a, count(*) AS c FROM (VALUES ('abc'), ('abc'), ('d')) v(t) GROUP BY a ORDER BY a")
same("SELECT d[1] AS a, d[2:3] AS b, len(d[2:]) AS c FROM (SELECT arrow_cast(t, 'Dictionary(Int32, Utf8)') AS d FROM (VALUES ('abc'), ('d')) v(t)) q ORDER BY a", "SELECT t[1] AS a, t[2:3] AS b, len(t[2:]) AS c FROM (VALUES ('abc'), ('d')) v(t) ORDER BY a")
f.error(f"SELECT t[1:4:2] FROM {TEXTS}", "type_error: `array_slice` of a text takes two positions and no step")
f.error(f"SELECT id[1:2] FROM {TEXTS}", "type_error: `array_slice` takes a list, not int64")
f.error("SELECT list_string_agg(range(1000000), repeat('x', 10000000)) FROM n", "memory_exceeded")

f.note("Elements where a list of Booleans is true, and at positions.")
texts("list_where(l, [true, false, true])", "list_where(l, list_transform(s, t -> t IS NOT NULL))", "list_where(l, [])", "array_where(s, [false, true, true])", "list_where([id, 9], [true, false, true])", "list_where(l, NULL)")
texts("list_select(l, [2, 1, 5, 1])", "list_select(l, [0, -1, 9])", "list_select([7, 8, 9], [id])", "list_select(l, [])", "array_select(s, range(1, id + 1))", "list_select(l, NULL)", "list_select([4, 5], list_filter(l, e -> e < 3))")
f.error("SELECT list_select(l, [1, NULL]) FROM n", ".*`list_select`: its second list has a NULL")
f.error("SELECT list_where(l, l) FROM n", "type_error: `list_where` takes a list and a list of Booleans")
f.error("SELECT list_select(l, s) FROM n", "type_error: `list_select` takes a list and a list of integers")

f.note("NULL is no element of what two lists have in common.")
texts("list_sort(list_distinct(l))", "list_sort(array_distinct(s))", "list_sort(list_intersect(l, [1, 2, NULL]))", "list_reverse(l)", "list_sort(l)", "list_sort(l, 'DESC')", "list_sort(l, 'ASC', 'NULLS FIRST')", "list_reverse_sort(s)", "list_reverse_sort(l, 'NULLS FIRST')")
values("list_has_any(l, [NULL, 9])", "list_has_any(l, [1, 9])", "list_has_all(l, [1, NULL])", "list_has_all(l, [1, 9])", "list_has_all(l, NULL::int[])", "list_has_any(NULL::int[], l)")
values("list_has_any(l, [])", "list_has_any(l, [NULL])", "list_has_any([], l)", "list_has_all(l, [])", "list_has_any(l, NULL)", "list_has_all(NULL, l)")
values("l @> [1, NULL]", "[1, NULL] <@ l", "l <@ [1, 2, 3]", "[1, 2, 3] @> l", "l @> []::int[]", "l && [1, 9]", "[NULL, 9] && l")
values("list_contains(l, 1)", "list_position(l, 1)", "list_position(l, 9)", "list_indexof(s, 'a')", "len(list_distinct(x))")
texts("list_concat(l, [9])", "list_append(l, 9)", "list_prepend(9, l)", "array_push_front(l, 9)", "array_push_back(l, 9)", "array_pop_back(l)", "array_pop_front(l)")
same("SELECT id, len(l || [9]) AS a FROM n WHERE id <> 3 ORDER BY id")

f.note("Lengths, parts of texts, lists of lists.")
values("len(l)", "length(l)", "array_length(l)", "len(s)", "length('añb')", "len(s[1])")
same("SELECT string_split(t, '-')[2] AS a, len(string_split(t, '-')) AS b, len(string_split(t, '')) AS c, len(str_split(t, NULL)) AS d, array_to_string(string_to_array('x' || t, 'b'), '/') AS e FROM (VALUES ('a-b-c'), (''), ('añb'), (NULL)) v(t) ORDER BY t")
same("SELECT array_to_string(flatten([l, [8], NULL]), ',') AS a, len(flatten([l, l])) AS b FROM n WHERE id IN (1, 2, 4) ORDER BY id")
f.error("SELECT len(l, 1) FROM n", ".*`len` takes one text or list")
f.error("SELECT string_split(l, 'a') FROM n", "type_error: `string_split` takes a text and its separator")

f.note("Lists made of the elements of others.")
texts("[e + 1 for e in l if e > 1]", "[e for e in l if e IS NOT NULL]", "[upper(t) for t in s]", "[e * id for e in l]", "list_apply(l, e -> e + 1)", "array_apply(l, e -> -e)", "list_filter(l, e -> e < 3)")
same("SELECT list_sum([list_sum([y * 2 for y in z]) for z in [l, [1]]]) AS a FROM n WHERE id IN (1, 4) ORDER BY a")
same("SELECT id, list_sum(list_transform(l, lambda e: e * 2)) AS a FROM n ORDER BY id")

f.note("Elements without a type.")
same("SELECT list_sum([]) AS a, list_count([NULL]) AS b, list_max([]) AS c, len([]) AS d, list_bool_and([NULL]) AS e FROM n WHERE id = 1")

f.note("Without FROM a list is one if the block calls a function of lists.")
same("SELECT list_sum([1, 2, 3]) AS a, len([1, NULL]) AS b, list_sort([3, 1])[1] AS c")
same("SELECT list_max([x * 2 for x in [1, 2, 3] if x < 3]) AS a")

f.note("Types of lists.")
texts("l::text[]", "l::double[]::int[]", "TRY_CAST(s AS text[])", "CAST(l AS text[])")
values("list_max(l::text[])", "list_sum(['1', '2']::int[])", "([1, 2]::double[])[2] / 4")

f.note("Rows of the positions of elements.")
same("SELECT id, generate_subscripts(l, 1) AS i FROM n ORDER BY id, i")
same("SELECT i, count(*) AS c FROM (SELECT generate_subscripts(l, 1) AS i FROM n) q GROUP BY i ORDER BY i")

f.note("Structs.")
values("struct_extract(s, 'a')", "s['b']", "s.a", of="st")
values("(struct_pack(a := id, b := 'x'))['b']", "struct_extract(struct_pack(c := id + 1), 'c')", of="st")
same("SELECT (struct_pack(a => id, b => 'x'))['a'] AS a FROM st ORDER BY id", "SELECT (struct_pack(a := id, b := 'x'))['a'] AS a FROM st ORDER BY id")
same("SELECT row(1, 'x') = row(1, 'x') AS a, row(id, 2) = row(2, 2) AS b FROM st ORDER BY id")
f.error("SELECT struct_pack(1) FROM st", "unknown_name")

f.note("Maps.")
con.execute("CREATE VIEW m AS SELECT id, map([id, 9], ['a', 'b']) AS k, map {'a': id, 'b': 2} AS t FROM n")
f.ok("CREATE VIEW m AS SELECT id, map([id, 9], ['a', 'b']) AS k, map {'a': id, 'b': 2} AS t FROM n")
values("t['a']", "t['z']", "cardinality(t)", "map_contains(t, 'a')", "map_contains(k, 3)", "map_extract_value(k, 3)", "map_extract_value(t, 'b')", "list_sum(map_keys(k))", "list_string_agg(map_values(k))", "map_extract(t, 'a')[1]", "len(map_entries(t))", of="m")
texts("map_extract(t, 'z')", "map_extract(k, 3)", "element_at(t, 'a')", "map_extract(t, CASE WHEN id > 2 THEN 'a' END)", "map_extract(CASE WHEN id > 2 THEN t END, 'a')", of="m")
values("k[id]", "k[9]", "k[8]", "t[CASE WHEN id > 2 THEN 'a' ELSE 'b' END]", "(map([1.5], [id]))[1.5]", "(CASE WHEN id > 2 THEN k END)[9]", "list_extract([id], 1)", of="m")
same("SELECT id, len(map_extract(map {'a': NULL::int}, 'a')) AS a FROM n ORDER BY id")
