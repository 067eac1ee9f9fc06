"""Writes sql/random/queries.txt: 2,000 random cell queries with the answers that DuckDB gives, and the data under
tests/data/random that they read.

    pip install numpy zarr duckdb && python sql/make_random.py [SEED [COUNT]]

Running it again gives the same bytes. A query is a pair of texts, Tessera's and DuckDB's, which differ only in spelling:
float literals (a DECIMAL in DuckDB), integer division (`/` here, `//` there), partial dates, relations.

What is left out, because the two engines define it differently:
* negative zeros, infinities and NaNs with a sign: comparison is IEEE's total order here, -0.0 = 0.0 and one NaN there;
* integer overflow (a wrap here, an error there), integer sums beyond 64 bits (an error here, 128 bits there);
* float32 with integers in one expression, and int literals beside float32: other result types;
* division by zero and functions outside their domain: NULL or an error there, inf, NaN or an error here;
* the default place of NULL in ORDER BY: NULLS FIRST or LAST is always written;
* median and quantiles of integers, log (base), round of halves at two digits, text functions with other names;
* variances of NaN;
* max(x) beside max(CAST(x AS DOUBLE)): DataFusion gives both columns one name and refuses the query.
A table there has a row for each cell of all dimensions; a block here has one for each cell of what it names, so where it
names less the table is cut to the first position of the others ([`named`]).
Floats in the data are multiples of 1/4 and small, so sums are exact in any order and near ties cannot flip.
"""

import random
import re
import sys
from pathlib import Path

import duckdb
import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).resolve().parent))
from goldens.core import cell  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 20201
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
rng = random.Random(SEED)
values = np.random.default_rng(7)


# ------------------------------------------------------------------------------------------------ data
class Table:
    """A dataset over `dims` (name → labels); a variable is (dims, data, mask or None)."""

    def __init__(self, name, dims, variables):
        self.name, self.dims, self.variables = name, dims, variables
        self.columns = [(d, kind(v)) for d, v in dims.items()] + [(n, kind(data)) for n, (_, data, _) in variables.items()]

    def write(self):
        group = zarr.open_group(str(ROOT / "tests/data/random" / f"{self.name}.zarr"), mode="w", zarr_format=3)
        for d, labels in self.dims.items():
            attrs = {}
            if labels.dtype.kind == "M":
                attrs = {"units": "hours since 2020-01-01", "calendar": "standard"}
                labels = (labels - np.datetime64("2020-01-01", "h")).astype("i8")
            self.array(group, d, labels, [d], attrs, labels.shape)
        for n, (dims, data, mask) in self.variables.items():
            attrs = {}
            if mask is not None:
                fill = -999 if data.dtype.kind in "iu" else -999.0
                data = np.where(mask, np.asarray(fill, data.dtype), data)
                attrs = {"_FillValue": fill}
            self.array(group, n, data, dims, attrs, tuple(-(-s // 2) for s in data.shape))

    @staticmethod
    def array(group, name, data, dims, attrs, chunks):
        array = group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=chunks, dimension_names=dims, compressors=None, attributes=attrs)
        array[...] = data

    def create(self, con):
        shape = [len(v) for v in self.dims.values()]
        types = {"f8": "DOUBLE", "f4": "FLOAT", "i8": "BIGINT", "i4": "INTEGER", "i2": "SMALLINT", "u1": "UTINYINT", "b1": "BOOLEAN", "ts": "TIMESTAMP", "str": "VARCHAR"}
        columns = [f"{n} {types[k]}" for n, k in self.columns] + [f"pos_{d} INTEGER" for d in self.dims] + ["_row INTEGER"]
        con.execute(f"CREATE TABLE {self.name} ({', '.join(columns)})")
        rows = []
        for row, index in enumerate(np.ndindex(*shape)):
            at = dict(zip(self.dims, index))
            line = [plain(labels[at[d]]) for d, labels in self.dims.items()]
            for dims, data, mask in self.variables.values():
                place = tuple(at[d] for d in dims)
                line.append(None if mask is not None and mask[place] else plain(data[place]))
            rows.append([*line, *index, row])
        con.executemany(f"INSERT INTO {self.name} VALUES ({', '.join('?' * len(columns))})", rows)


def kind(data):
    return {"M": "ts", "U": "str", "T": "str", "O": "str"}.get(data.dtype.kind, data.dtype.str[1:])


def plain(v):
    if isinstance(v, np.datetime64):
        return v.astype("M8[us]").item()
    return str(v) if isinstance(v, str) else v.item()


def quarters(shape, dtype="f8", low=-40, high=40):
    """Multiples of 1/4 that are not 0."""
    v = values.integers(low, high, shape)
    return (np.where(v == 0, 3, v) / 4).astype(dtype)


def hidden(shape, share=0.2):
    return values.random(shape) < share


def nans(data, share=0.12):
    return np.where(values.random(data.shape) < share, np.asarray(np.nan, data.dtype), data)


hours = np.datetime64("2020-01-01", "h") + np.array([0, 6, 30, 31 * 24 + 3, 45 * 24, 46 * 24 + 12, 70 * 24, 366 * 24 + 5])
TABLES = [
    Table("wx", {"time": hours, "lat": np.array([60.0, 50.0, 47.5, 30.0, -10.0]), "lon": np.array([0.5, 5.0, 10.5, 20.0], "f4")}, {
        "t": (["time", "lat", "lon"], quarters((8, 5, 4)), hidden((8, 5, 4))),
        "p": (["time", "lat", "lon"], nans(quarters((8, 5, 4), "f4")), None),
        "r": (["time", "lat", "lon"], quarters((8, 5, 4), "f4"), hidden((8, 5, 4), 0.1)),
        "n": (["time", "lat", "lon"], values.integers(-9, 10, (8, 5, 4)).astype("i4"), hidden((8, 5, 4), 0.15)),
        "k": (["time", "lat", "lon"], values.integers(-5, 6, (8, 5, 4)).astype("i8"), None),
        "b": (["time", "lat", "lon"], values.random((8, 5, 4)) < 0.5, None),
        "o": (["lat", "lon"], nans(quarters((5, 4))), hidden((5, 4), 0.1)),
        "s": (["time"], values.integers(0, 4, 8).astype("i2"), None),
        "u": (["lon"], values.integers(1, 200, 4).astype("u1"), None),
    }),
    Table("gr", {"y": np.array([0, 10, 20, 30, -5, 40], "i4"), "x": np.array([3, 1, 4, 15, 9, 2, 6], "i8")}, {
        "w": (["y", "x"], quarters((6, 7)), None),
        "v": (["y", "x"], nans(quarters((6, 7)), 0.2), hidden((6, 7), 0.15)),
        "m": (["y", "x"], values.integers(-20, 20, (6, 7)).astype("i8"), hidden((6, 7), 0.2)),
        "h": (["x"], values.integers(0, 3, 7).astype("i4"), hidden(7, 0.3)),
        "fs": (["y", "x"], quarters((6, 7), "f4"), None),
        "i2": (["y", "x"], values.integers(-90, 90, (6, 7)).astype("i2"), hidden((6, 7), 0.15)),
    }),
    Table("st", {"lat": np.array([50.0, 30.0, 10.0, -10.0]), "z": np.array(["oak", "elm", "ash"], dtype="T")}, {
        "q": (["lat", "z"], quarters((4, 3)), hidden((4, 3), 0.2)),
        "g": (["z"], values.integers(0, 3, 3).astype("i4"), None),
        "fz": (["lat", "z"], quarters((4, 3), "f4"), None),
    }),
    Table("xs", {"x": np.array([9, 2, 3, 100, 1], "i8"), "e": np.array([1.5, 0.5], "f8")}, {
        "c": (["x", "e"], quarters((5, 2)), None),
        "a": (["x", "e"], values.integers(-6, 7, (5, 2)).astype("i8"), hidden((5, 2), 0.2)),
        "fe": (["x", "e"], quarters((5, 2), "f4"), hidden((5, 2), 0.2)),
        "ie": (["x", "e"], values.integers(-90, 90, (5, 2)).astype("i2"), hidden((5, 2), 0.2)),
    }),
    Table("one", {"i": np.arange(12, dtype="i8")}, {
        "f": (["i"], quarters(12), hidden(12, 0.2)),
        "d": (["i"], values.integers(0, 4, 12).astype("i4"), None),
    }),
]
BY_NAME = {t.name: t for t in TABLES}
NAN = {"p", "o", "v"}


# ------------------------------------------------------------------------------------------------ expressions
class E(tuple):
    """The same thing in both spellings."""

    def __new__(cls, ours, duck=None):
        return super().__new__(cls, (ours, ours if duck is None else duck))


def fmt(template, *parts):
    parts = [E(p) if isinstance(p, str) else p for p in parts]
    return E(template.format(*(p[0] for p in parts)), template.format(*(p[1] for p in parts)))


def listed(items, by=", "):
    items = list(items)
    return E(by.join(i[0] for i in items), by.join(i[1] for i in items))


def literal(v):
    return E(repr(v), f"{v!r}::DOUBLE")


def pick(*choices):
    return rng.choice(choices)


def chance(p):
    return rng.random() < p


class Scope:
    """Columns in sight: (text, name, kind, label of which dim or None, table)."""

    def __init__(self, tables):
        self.columns = []
        for prefix, table in tables:
            for n, k in table.columns:
                self.columns.append((f"{prefix}{n}", n, k, n in table.dims, table))

    def of(self, kinds, labels=None, nan=True):
        found = [c for c in self.columns if c[2] in kinds and (labels is None or c[3] == labels) and (nan or c[1] not in NAN)]
        return found

    def column(self, kinds, labels=None, nan=True):
        found = self.of(kinds, labels, nan)
        return rng.choice(found) if found else None

    def f8(self, depth=2, nan=True):
        c = self.column(("f8",), nan=nan)
        if depth == 0 or chance(0.25):
            if c and chance(0.85):
                return E(c[0])
            return literal(pick(0.5, 1.25, -2.0, 3.75))
        x = lambda: self.f8(depth - 1, nan)
        how = rng.randrange(11)
        if how < 4:
            return fmt("({} {} {})", x(), pick("+", "-", "*"), x())
        if how == 4:
            return fmt("({} / {})", x(), literal(pick(2.0, 4.0, -0.5)))
        if how == 5:
            return fmt("abs({})", x())
        if how == 6:
            return fmt("CASE WHEN {} THEN {} ELSE {} END", self.bool(depth - 1), x(), pick(x(), E("NULL")))
        if how == 7:
            return fmt("coalesce({}, {})", x(), x())
        if how == 8:
            return fmt("CAST({} AS DOUBLE)", self.int(depth - 1))
        if how == 9 and (c := self.column(("f4",), nan=nan)):
            return fmt("CAST({} AS DOUBLE)", c[0])
        if how == 10:
            return fmt("{}({})", pick("floor", "ceil"), fmt("({} + {})", x(), literal(100.125)))
        return fmt("nullif({}, {})", x(), literal(pick(0.5, 1.25, 2.0)))

    def int(self, depth=2):
        c = self.column(("i8", "i4"))
        if not c or chance(0.1):
            return E(str(rng.randrange(1, 6)))
        if depth == 0 or chance(0.35):
            return E(c[0])
        x = lambda: self.int(depth - 1)
        how = rng.randrange(9)
        if how < 3:
            return fmt("({} {} {})", x(), pick("+", "-"), x())
        if how == 3:
            return fmt("({} * {})", x(), str(pick(2, 3, -1)))
        if how == 4:
            n = str(pick(2, 3, 5, 7))
            i = x()
            return E(f"({i[0]} / {n})", f"({i[1]} // {n})")
        if how == 5:
            return fmt("({} % {})", x(), str(pick(2, 3, 5)))
        if how == 6:
            return fmt("CASE WHEN {} THEN {} ELSE {} END", self.bool(depth - 1), x(), pick(x(), E("NULL")))
        if how == 7:
            return fmt("coalesce({}, {})", x(), x())
        if (t := self.column(("ts",))) and chance(0.5):
            return fmt("CAST(date_part('{}', {}) AS BIGINT)", pick("month", "day", "hour", "year", "doy"), t[0])
        return fmt("abs({})", x())

    def bool(self, depth=1):
        how = rng.randrange(14)
        if depth > 0 and how < 4:
            if how == 3:
                return fmt("NOT ({})", self.bool(depth - 1))
            return fmt("({} {} {})", self.bool(depth - 1), pick("AND", "OR"), self.bool(depth - 1))
        op = pick("=", "<>", "<", "<=", ">", ">=")
        if how == 4 and (c := self.column(("b1",))):
            return E(c[0])
        if how == 5:
            c = rng.choice(self.columns)
            return fmt("{} IS {}NULL", c[0], pick("", "NOT "))
        if how == 6:
            return fmt("{} {}BETWEEN {} AND {}", self.f8(0), pick("", "", "NOT "), literal(pick(-5.0, -1.25, 0.5)), literal(pick(1.25, 4.0, 7.5)))
        if how == 7:
            items = ", ".join(str(v) for v in sorted({rng.randrange(-6, 7) for _ in range(rng.randrange(1, 5))}))
            return fmt("{} {}IN ({})", self.int(0), pick("", "", "NOT "), items)
        if how == 8:
            return fmt("{} IS {}DISTINCT FROM {}", self.int(0), pick("", "NOT "), self.int(0))
        if how == 9 and (c := self.column(("f4",))):
            return fmt("{} {} {}", c[0], op, literal(pick(-2.5, 0.25, 1.5)))
        if how in (10, 11):
            return self.on_label()
        if how == 12:
            return fmt("{} {} {}", self.f8(depth), pick("<", ">", "<=", ">="), self.f8(0))
        return fmt("{} {} {}", self.int(depth), op, self.int(0))

    def on_label(self, column=None):
        c = column or rng.choice([c for c in self.columns if c[3]])
        labels = c[4].dims[c[1]]
        op = pick("=", "<>", "<", "<=", ">", ">=")
        show = lambda v: spelled(v)
        if c[2] == "ts" and chance(0.3):
            return fmt("date_part('{}', {}) {} {}", pick("month", "hour", "day"), c[0], op, str(pick(0, 1, 2, 3, 6)))
        if c[2] == "ts" and chance(0.3):
            ours, duck = pick(("2020", "2020-01-01"), ("2020-02", "2020-02-01"), ("2021", "2021-01-01"))
            return fmt("{} {} {}", c[0], op, E(f"'{ours}'", f"'{duck}'"))
        if c[2] == "str" and chance(0.3):
            return fmt("{} LIKE '{}'", c[0], pick("%a%", "o%", "_l_"))
        if chance(0.3):
            some = rng.sample(list(labels), min(len(labels), rng.randrange(1, 4)))
            return fmt("{} {}IN ({})", c[0], pick("", "", "NOT "), listed(show(v) for v in some))
        if chance(0.25):
            a, b = sorted(rng.sample(list(labels), 2))
            return fmt("{} BETWEEN {} AND {}", c[0], show(a), show(b))
        return fmt("{} {} {}", c[0], op, show(rng.choice(list(labels))))

    def where(self):
        if chance(0.35):
            return E("")
        parts = [pick(self.on_label, self.on_label, self.bool)() for _ in range(rng.randrange(1, 4))]
        return fmt(" WHERE {}", listed(parts, " AND "))

    def aggregate(self):
        how = rng.randrange(16)
        f = E("")
        if chance(0.2):
            f = fmt(" FILTER (WHERE {})", self.bool())
        if how == 0:
            return fmt("count(*){}", f)
        if how == 1:
            return fmt("count({}){}", rng.choice(self.columns)[0], f)
        if how == 2:
            return fmt("count(DISTINCT {})", rng.choice(self.columns)[0])
        if how in (3, 4):
            return fmt("sum({}){}", self.f8(1), f)
        if how == 5:
            return fmt("sum({}){}", self.int(1), f)
        if how in (6, 7):
            return fmt("avg({}){}", pick(self.f8, self.f8, self.int)(1), f)
        if how in (8, 9):
            return fmt("{}({}){}", pick("min", "max"), pick(self.f8, self.int)(1), f)
        if how == 10:
            c = rng.choice(self.columns)
            return fmt("{}({}){}", pick("min", "max"), c[0], f) if c[2] != "b1" else fmt("{}({}){}", pick("bool_and", "bool_or"), c[0], f)
        if how == 11:
            return fmt("{}({}){}", pick("stddev", "stddev_pop", "var_pop", "var_samp"), self.f8(0, nan=False), f)
        if how == 12:
            c = self.column(("f4",))
            return fmt("{}({}){}", pick("sum", "avg", "min", "max"), c[0] if c else self.f8(0), f)
        if how == 13:
            return fmt("{}({}){}", pick("bool_and", "bool_or"), self.bool(), f)
        if how == 14:
            return fmt("sum(DISTINCT {})", self.int(0))
        return fmt("sum(CASE WHEN {} THEN 1 ELSE 0 END)", self.bool())


def spelled(v):
    if isinstance(v, np.datetime64):
        return E("'" + str(v.astype("M8[s]")) + "'")
    if isinstance(v, str):
        return E(f"'{v}'")
    return literal(float(v)) if isinstance(v, np.floating) else E(str(v))


# ------------------------------------------------------------------------------------------------ queries
def order_all(names):
    names = list(names)
    rng.shuffle(names)
    return ", ".join(f"{n} {pick('ASC', 'DESC')} NULLS {pick('FIRST', 'LAST')}" for n in names)


def limit(p=0.5, most=9):
    return f" LIMIT {rng.randrange(1, most)}" + (f" OFFSET {rng.randrange(1, 4)}" if chance(0.2) else "") if chance(p) else ""


def table():
    return rng.choice([TABLES[0]] * 4 + [TABLES[1]] * 3 + [TABLES[2], TABLES[3], TABLES[4]])


def plain_select():
    t = table()
    s = Scope([("", t)])
    labels = [E(d) for d in t.dims]
    items = labels + [pick(s.f8, s.int, s.bool)() for _ in range(rng.randrange(1, 3))]
    items += [E(c[0]) for c in rng.sample(s.columns, 1)]
    head = listed(fmt("{} AS c{}", e, str(i)) for i, e in enumerate(items))
    if chance(0.5):
        return fmt("SELECT {} FROM {}{}", head, t.name, s.where()), E(" LIMIT 8", " ORDER BY _row LIMIT 8")
    keys = [f"c{i}" for i in range(len(labels))]
    first = pick([], [f"c{len(labels)}"], [f"c{len(labels)}", f"c{len(items) - 1}"])
    by = ", ".join(f"{n} {pick('ASC', 'DESC')} NULLS {pick('FIRST', 'LAST')}" for n in dict.fromkeys([*first, *keys]))
    return fmt("SELECT {} FROM {}{}", head, t.name, s.where()), E(f" ORDER BY {by} LIMIT {rng.randrange(1, 9)}")


def top_with_ties():
    """Equal keys keep dimension order."""
    t = table()
    s = Scope([("", t)])
    key = pick(s.int, s.f8)(1)
    way = f"{pick('ASC', 'DESC')} NULLS {pick('FIRST', 'LAST')}"
    head = listed([*map(E, t.dims), fmt("{} AS c", key)])
    q = fmt("SELECT {} FROM {}{}", head, t.name, s.where())
    n = rng.randrange(1, 9)
    return q, E(f" ORDER BY c {way} LIMIT {n}", f" ORDER BY c {way}, _row LIMIT {n}")


def key_of(s, t):
    d = rng.choice(list(t.dims))
    k = kind(t.dims[d])
    if chance(0.6):
        return E(d), d
    if k == "ts":
        return pick(fmt("date_part('{}', {})", pick("month", "year", "hour", "dow"), d), fmt("date_trunc('{}', {})", pick("month", "day", "year"), d)), None
    if k == "str":
        return pick(fmt("upper({})", d), fmt("length({})", d), fmt("{} = 'elm'", d)), None
    if k in ("f8", "f4"):
        return pick(fmt("floor({} / {})", E(d, f"{d}::DOUBLE"), literal(20.0)), fmt("{} > {}", d, literal(20.0)), fmt("CASE WHEN {} > {} THEN 'hi' ELSE 'lo' END", d, literal(30.0))), None
    return pick(fmt("{} % 3", d), fmt("{} > 5", d), E(f"{d} / 10", f"{d} // 10"), fmt("CASE WHEN {} > 5 THEN {} END", d, d)), None


def grouped():
    t = table()
    s = Scope([("", t)])
    keys = [key_of(s, t) for _ in range(pick(1, 1, 2, 2, 3))]
    if chance(0.15):
        keys.append((pick(s.bool, lambda: s.int(0))(), None))
    keys = list({k[0]: k for k in keys}.values())
    calls = [s.aggregate() for _ in range(rng.randrange(1, 4))]
    if chance(0.3):
        calls.append(fmt("{} - {}", *(fmt("max({})", x) for x in (s.f8(1), s.f8(0)))))
    names = [f"k{i}" for i in range(len(keys))] + [f"a{i}" for i in range(len(calls))]
    items = listed(fmt("{} AS {}", e, n) for e, n in zip([k[0] for k in keys] + calls, names))
    having = E("")
    if chance(0.25):
        having = fmt(" HAVING {}", pick(fmt("count(*) > {}", str(rng.randrange(1, 12))), fmt("max({}) > {}", s.f8(0), literal(1.5)), fmt("sum({}) < {}", s.int(0), str(rng.randrange(-3, 12))), fmt("avg({}) IS NOT NULL", s.f8(0))))
    q = fmt("SELECT {} FROM {}{} GROUP BY {}{}", items, t.name, s.where(), listed(k[0] for k in keys), having)
    if all(k[1] for k in keys) and chance(0.6):
        # In dimension order without ORDER BY.
        dims = [d for d in t.dims if d in {k[1] for k in keys}]
        return q, E(limit(), " ORDER BY " + ", ".join(f"min(pos_{d})" for d in dims) + "{limit}")
    return q, E(f" ORDER BY {order_all(n for n in names if n[0] == 'k')}{limit(0.7)}")


def total():
    t = table()
    s = Scope([("", t)])
    calls = listed(fmt("{} AS a{}", s.aggregate(), str(i)) for i in range(rng.randrange(2, 5)))
    return fmt("SELECT {}, count(*) AS n FROM {}{}", calls, t.name, s.where()), E("")


def product(l, r):
    """A sum of products of one type: a contraction where it can be. Of int16 DuckDB multiplies in 16 bits."""
    sides = [Scope([(p, t)]) for p, t in (("l.", l), ("r.", r))]
    kinds = [k for k in ("f8", "f4", "i2", "i4") if all(side.of((k,), labels=False) for side in sides)]
    k = rng.choice(kinds)
    a, b = (rng.choice(side.of((k,), labels=False))[0] for side in sides)
    wide = {"f8": "{} * {}", "f4": "{}::DOUBLE * {}::DOUBLE"}.get(k, "{}::BIGINT * {}::BIGINT")
    kept = fmt(" FILTER (WHERE {})", rng.choice(sides).bool(0)) if chance(0.25) else E("")
    return fmt("sum({}){}", E(f"{a} * {b}", wide.format(a, b)), kept)


def outer_joined():
    """All labels of one side meet one of the other: the join is an alignment whatever its kind is."""
    left, right, on, common = pick(("wx", "st", "lat", "50, 30, -10"), ("gr", "xs", "x", "3, 1, 9, 2"))
    l, r = BY_NAME[left], BY_NAME[right]
    ls, rs = Scope([("l.", l)]), Scope([("", r)])
    inner = fmt("SELECT {} AS d, {} AS m, count(*) AS n FROM {} WHERE {} IN ({}) GROUP BY {}", on, rs.aggregate(), right, on, common, on)
    way = pick("RIGHT JOIN", "FULL JOIN", "LEFT JOIN")
    kept = f" WHERE {on} IN ({common})" if way == "FULL JOIN" or chance(0.3) else ""
    source = fmt(f"(SELECT * FROM {left}{kept}) l {way} ({{}}) r ON l.{on} = r.d", inner)
    if chance(0.5):
        key = rng.choice([f"l.{d}" for d in l.dims])
        return fmt("SELECT {} AS k0, {} AS a, max(r.m) AS b, count(r.n) AS c FROM {} GROUP BY {}", key, ls.aggregate(), source, key), E(f" ORDER BY {order_all(['k0'])}{limit()}")
    dims = [f"l.{d}" for d in l.dims]
    head = listed(fmt("{} AS c{}", e, str(i)) for i, e in enumerate([*map(E, dims), E("r.d"), E("r.m"), pick(ls.f8, ls.int)(1)]))
    return fmt("SELECT {} FROM {}", head, source), E(f" ORDER BY {order_all(f'c{i}' for i in range(len(dims)))} LIMIT {rng.randrange(1, 9)}")


def joined():
    left, right, on = pick(("wx", "st", "lat"), ("gr", "xs", "x"), ("gr", "xs", "x"), ("wx", "st", "lat"))
    way = pick("JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
    if chance(0.3):
        left, right = right, left
    l, r = BY_NAME[left], BY_NAME[right]
    s = Scope([("l.", l), ("r.", r)])
    clause = pick(f"ON l.{on} = r.{on}", f"USING ({on})")
    source = f"{left} l {way} {right} r {clause}"
    if chance(0.65):
        dims = [f"l.{d}" for d in l.dims] + [f"r.{d}" for d in r.dims]
        if way == "JOIN":
            dims.remove(f"r.{on}")
        keys = rng.sample(dims, rng.randrange(0, min(3, len(dims)) + 1))
        calls = [pick(s.aggregate, s.aggregate, lambda: product(l, r))() for _ in range(rng.randrange(1, 3))]
        names = [f"k{i}" for i in range(len(keys))]
        items = listed([fmt("{} AS {}", E(k), n) for k, n in zip(keys, names)] + [fmt("{} AS a{}", c, str(i)) for i, c in enumerate(calls)])
        q = fmt("SELECT {} FROM {}{}", items, source, s.where())
        if not keys:
            return q, E("")
        return fmt("{} GROUP BY {}", q, ", ".join(keys)), E(f" ORDER BY {order_all(names)}{limit(0.8)}")
    dims = [f"l.{d}" for d in l.dims] + [f"r.{d}" for d in r.dims]
    items = [*map(E, dims), pick(s.f8, s.int)()]
    head = listed(fmt("{} AS c{}", e, str(i)) for i, e in enumerate(items))
    return fmt("SELECT {} FROM {}{}", head, source, s.where()), E(f" ORDER BY {order_all(f'c{i}' for i in range(len(dims)))} LIMIT {rng.randrange(1, 9)}")


def windowed():
    t = table()
    s = Scope([("", t)])
    dims = list(t.dims)
    along = rng.choice(dims)
    rest = [d for d in dims if d != along]
    calls = []
    for i in range(rng.randrange(1, 3)):
        x = s.f8(1) if chance(0.6) else s.int(1)
        order = f"ORDER BY {along}" + pick("", "", " DESC")
        parts = list(rest)
        if any(c[2] == "ts" and c[1] == along for c in s.columns) and chance(0.35):
            parts.append(f"date_part('{pick('month', 'hour', 'year')}', {along})")
        elif "y" == along and chance(0.3):
            parts.append("y > 15")
        part = f"PARTITION BY {', '.join(parts)} " if parts else ""
        a, b = rng.randrange(0, 3), rng.randrange(0, 3)
        frame = pick("", " ROWS UNBOUNDED PRECEDING", f" ROWS BETWEEN {a} PRECEDING AND CURRENT ROW", f" ROWS BETWEEN {a} PRECEDING AND {b} FOLLOWING",
                     f" ROWS BETWEEN CURRENT ROW AND {b} FOLLOWING", " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", f" ROWS BETWEEN {a + 1} PRECEDING AND {a} PRECEDING")
        how = rng.randrange(9)
        if how == 0:
            c = fmt("{}({}, {}) OVER ({}{})", pick("lag", "lead"), x, str(rng.randrange(1, 4)), part, order)
        elif how == 1:
            c = fmt("{}() OVER ({}{})", pick("row_number", "rank", "dense_rank"), part, order)
        elif how == 2:
            c = fmt("{}({}) OVER ({}{}{})", pick("first_value", "last_value"), x, part, order, frame)
        elif how == 3:
            c = fmt("{} - {}({}) OVER ({})", x, pick("avg", "avg", "min", "stddev_pop"), x if t.name != "gr" and t.name != "wx" else s.int(0), part.strip())
        else:
            c = fmt("{}({}) OVER ({}{}{})", pick("sum", "avg", "min", "max", "count"), x, part, order, frame)
        calls.append(fmt("{} AS w{}", c, str(i)))
    where = pick(E(""), fmt(" WHERE {}", s.on_label()), s.where(), fmt(" WHERE {}", s.bool()))
    q = fmt("SELECT {} FROM {}{}", listed([*map(E, dims), *calls]), t.name, where)
    if chance(0.5):
        return fmt("SELECT * FROM ({}) AS win", q), E(f" ORDER BY {order_all(dims)} LIMIT {rng.randrange(2, 9)}")
    return q, E(" LIMIT 8", " ORDER BY _row LIMIT 8")


def composed():
    t = table()
    s = Scope([("", t)])
    how = rng.randrange(8)
    d = rng.choice(list(t.dims))
    if how == 0:
        cols = rng.sample([*t.dims, *[n for n, (dims, _, _) in t.variables.items() if len(dims) == 1]], rng.randrange(1, 3)) if t.name != "one" else ["d"]
        return fmt("SELECT DISTINCT {} FROM {}{}", ", ".join(cols), t.name, s.where()), E(f" ORDER BY {order_all(cols)} LIMIT 9")
    if how == 1:
        x = s.f8(1)
        return fmt("SELECT {} AS d, {} AS x FROM {} WHERE {} > (SELECT avg({}) FROM {})", d, x, t.name, x, x, t.name), E(" LIMIT 7", " ORDER BY _row LIMIT 7")
    if how == 2:
        inner = fmt("SELECT {} AS d, max({}) AS m, count(*) AS n FROM {}{} GROUP BY {}", d, s.f8(1), t.name, s.where(), d)
        return fmt("SELECT min(m) AS a, max(m) AS b, sum(n) AS c, count(*) AS e FROM ({}) AS q", inner), E("")
    if how == 3:
        inner = fmt("SELECT {} AS d, avg({}) AS m FROM {} GROUP BY {}", d, s.f8(0), t.name, d)
        x = s.f8(0)
        dims = ", ".join(f"x.{n} AS {n}" for n in t.dims)
        sc = Scope([("x.", t)])
        return fmt("WITH q AS ({}) SELECT {}, {} - q.m AS a FROM {} x JOIN q ON x.{} = q.d{}", inner, dims, sc.f8(1), t.name, d, sc.where()), E(f" ORDER BY {order_all(t.dims)} LIMIT 8")
    if how == 4:
        a, b = (fmt("SELECT {} AS d, count(*) AS n, max({}) AS m FROM {}{} GROUP BY {}", d, s.int(1), t.name, s.where(), d) for _ in range(2))
        return fmt("SELECT d, n, m FROM ({} UNION ALL {}) AS q", a, b), E(f" ORDER BY {order_all(['d', 'n', 'm'])} LIMIT 9")
    if how == 5:
        return fmt("SELECT {} AS d, count(*) AS n FROM {} WHERE {} IN (SELECT {} FROM {} WHERE {}) GROUP BY {}", d, t.name, d, d, t.name, s.bool(), d), E(f" ORDER BY d {pick('ASC', 'DESC')}")
    if how == 6:
        dims = list(t.dims)[:2]
        return fmt("SELECT {}, sum({}) AS a, count(*) AS n FROM {}{} GROUP BY {} ({})", ", ".join(dims), s.f8(1), t.name, s.where(), pick("ROLLUP", "CUBE"), ", ".join(dims)), E(f" ORDER BY {order_all(dims)}, n LIMIT 12") if len(dims) > 1 else E(f" ORDER BY {order_all(dims)}, n")
    inner = fmt("SELECT *, {} AS ex FROM {}{}", s.f8(1), t.name, s.where())
    return fmt("SELECT {} AS d, sum(ex) AS a, min(ex) AS b, count(ex) AS c FROM ({}) AS q GROUP BY {}", d, inner, d), E(f" ORDER BY d {pick('ASC', 'DESC')}{limit()}")


FAMILIES = [plain_select] * 4 + [top_with_ties] * 2 + [grouped] * 7 + [total] * 2 + [joined] * 3 + [outer_joined] + [windowed] * 4 + [composed] * 3


# ------------------------------------------------------------------------------------------------ whose cells are rows
SOURCE = re.compile(r"\b(FROM|JOIN) (wx|gr|st|xs|one)\b(?: (?!(?:JOIN|LEFT|RIGHT|FULL|ON|USING|WHERE|GROUP|ORDER|LIMIT|HAVING|UNION)\b)(\w+))?")


def blocks(text):
    """The blocks of a query, each without those inside it: text at its own places, blanks elsewhere."""
    text = re.sub(r"'[^']*'", lambda h: " " * len(h[0]), text)
    found, stack, own = [], [], [0] * len(text)
    for at, sign in enumerate(text):
        if sign == "(":
            inner = text.startswith("SELECT", at + 1)
            if inner:
                found.append(None)
            stack.append(len(found) if inner else (stack[-1] if stack else 0))
        own[at] = stack[-1] if stack else 0
        if sign == ")":
            stack.pop()
    parts = ["".join(c if o == k else " " for c, o in zip(text, own)) for k in range(len(found) + 1)]
    split = []
    for part in parts:
        ends = [0, *(h.start() for h in re.finditer("UNION ALL", part)), len(part)]
        split += [" " * a + part[a:b] + " " * (len(part) - b) for a, b in zip(ends, ends[1:])]
    return split


def missing(block, name, alias):
    """The dimensions of a table that nothing in a block is along."""
    t = BY_NAME[name]
    if re.search(r"SELECT \*|count\(\*\)|SELECT .*, \* ", block):
        return []
    items = set(re.findall(r"\bAS (\w+)", block))
    # Neither a relation's name nor its alias is a column.
    head, _, by = SOURCE.sub("", re.sub(r"\bAS \w+", "", block)).partition(" ORDER BY ")
    used = set()
    for text, hidden in ((head, set()), (by, items)):
        for prefix, column in re.findall(r"(?:\b(\w+)\.)?\b(\w+)\b(?!\.)", text):
            if (prefix == alias or prefix == name) if prefix else column not in hidden:
                used.add(column)
    along = {d for d in t.dims if d in used}.union(*(dims for n, (dims, _, _) in t.variables.items() if n in used))
    return [d for d in t.dims if d not in along] if along else []


def named(ours, duck):
    """DuckDB's query over the cells that each block names."""
    cuts = {}
    for block in blocks(ours):
        for h in SOURCE.finditer(block):
            cuts[h.start()] = missing(block, h[2], h[3] or "")
    cuts = [cuts[at] for at in sorted(cuts)]
    assert len(cuts) == len(SOURCE.findall(duck)), (ours, duck)
    cut = iter(cuts)

    def table(h):
        dims = next(cut)
        if not dims:
            return h[0]
        where = " AND ".join(f"pos_{d} = 0" for d in dims)
        return f"{h[1]} (SELECT * FROM {h[2]} WHERE {where}) {h[3] or h[2]}"

    return SOURCE.sub(table, duck)


# ------------------------------------------------------------------------------------------------ answers
def shown(v, type_):
    if isinstance(v, float):
        return cell(np.float32(v) if type_ == "FLOAT" else np.float64(0.0 if v == 0 else v))
    if hasattr(v, "isoformat"):
        return cell(np.datetime64(v, "us"))
    return cell(v)


def main():
    con = duckdb.connect()
    con.execute("SET threads = 1")
    for t in TABLES:
        t.write()
        t.create(con)
    lines, seen, refused = [], set(), {}
    while len(seen) < COUNT:
        family = rng.choice(FAMILIES)
        q, end = family()
        duck = q[1] + end[1].replace("{limit}", end[0])
        ours = q[0] + end[0]
        if ours in seen or any(f"{f}({c})" in ours for f, c in re.findall(r"(\w+)\(CAST\((\w+) AS DOUBLE\)\)", ours)):
            continue
        try:
            if len(con.execute(duck).fetchall()) > 40:
                continue
            result = con.execute(named(ours, duck))
            rows, types = result.fetchall(), [str(d[1]) for d in result.description]
        except duckdb.Error as e:
            refused.setdefault(str(e).split("\n")[0][:60], []).append(duck)
            continue
        if len(rows) > 40:
            continue
        seen.add(ours)
        lines.append(f"? {ours}")
        lines += [" ".join(shown(v, k) for v, k in zip(row, types)) for row in rows]
    path = ROOT / "sql/random" / ("queries.txt" if len(sys.argv) < 2 else f"seed_{SEED}.txt")
    path.write_text("\n".join(["# Made by sql/make_random.py from DuckDB: do not edit.", *lines]) + "\n")
    print(len(seen), "queries", path.stat().st_size, "bytes;", sum(map(len, refused.values())), "refused by DuckDB")
    for reason, some in sorted(refused.items(), key=lambda r: -len(r[1]))[:8]:
        print(len(some), reason, "|", some[0][:300])


main()
