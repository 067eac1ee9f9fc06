"""Writes parameters.txt: `python make_parameters.py DEFINITIONS > parameters.txt`.

DEFINITIONS is the folder `definitions` of a checkout of ecCodes (2.50), which lists the codes that have names; the
names are those that the Python package `eccodes` reports for messages with these codes.
"""

import re
import sys
from pathlib import Path

import eccodes as ec

ROOT = Path(sys.argv[1])
ASKED = ("paramId", "shortName", "cfVarName", "units", "name", "cfName")
PARAMETER = ("discipline", "parameterCategory", "parameterNumber")
FIRST = ("typeOfFirstFixedSurface", "scaledValueOfFirstFixedSurface", "scaleFactorOfFirstFixedSurface")
SECOND = ("typeOfSecondFixedSurface", "scaledValueOfSecondFixedSurface", "scaleFactorOfSecondFixedSurface")
STATISTIC, LOCAL = "typeOfStatisticalProcessing", "localTablesVersion"
KNOWN = {*PARAMETER, *FIRST, *SECOND, STATISTIC, LOCAL}
PREFIX = {"0": "avg_", "2": "max_", "3": "min_", "6": "std_"}
ECMF, KWBC = 98, 7


def concepts(path):
    text = re.sub(r"^#.*$", "", (ROOT / path).read_text(), flags=re.M)
    for body in re.findall(r"'[^']*'\s*=\s*\{(.*?)\}", text, re.S):
        pairs = (kv.split("=", 1) for kv in body.split(";") if "=" in kv)
        keys = {k.strip(): v.strip() for k, v in pairs}
        if keys.keys() <= KNOWN and not keys.get(STATISTIC, "").startswith("["):
            yield keys


def names(edition, keys):
    h = ec.codes_grib_new_from_samples(f"GRIB{edition}")
    for k, v in keys.items():
        ec.codes_set_missing(h, k) if v == "missing()" else ec.codes_set(h, k, int(v))
    out = [ec.codes_get_string(h, k) for k in ASKED]
    ec.codes_release(h)
    return out


def names2(centre, keys):
    """Of a message of edition 2; ECMWF's older messages have its own names for statistics."""
    base = {"centre": centre, "tablesVersion": 27, LOCAL: keys.get(LOCAL, "0")}
    base["productDefinitionTemplateNumber"] = 8 if STATISTIC in keys else 0
    base |= {k: keys[k] for k in PARAMETER}
    if STATISTIC in keys:
        base[STATISTIC] = keys[STATISTIC]
    base[FIRST[0]], base[SECOND[0]] = keys.get(FIRST[0], 255), keys.get(SECOND[0], 255)
    return names(2, base | {k: keys[k] for k in FIRST[1:] + SECOND[1:] if k in keys})


def surface(letter, keys, three):
    kind, value, factor = (keys.get(k) for k in three)
    if kind is None or (kind == "255" and letter == "s"):
        return []
    if value in (None, "missing()"):
        return [f"{letter}{kind}"]
    return [f"{letter}{kind}:{int(value) * 10.0 ** -int(factor or 0):g}"]


def conditions(keys):
    out = surface("f", keys, FIRST) + surface("s", keys, SECOND)
    return out + ([f"p{keys[STATISTIC]}"] if STATISTIC in keys else [])


def key(keys):
    return ".".join(keys[k] for k in PARAMETER)


def line(key, conditions, name, statistics=""):
    number, short, var, units, long, standard = name
    var = "" if var == short else var
    standard = "" if standard == "unknown" else standard
    return f"{key}|{' '.join(conditions)}|{number}|{short}|{var}|{units}|{long}|{standard}|{statistics}"


def is_common(keys):
    d, c = int(keys["discipline"]), int(keys["parameterCategory"])
    of = {0: {*range(8), *range(13, 18), 19, 191}, 1: set(range(3)), 2: {0, 3}, 10: {0, 1, 2, 191}}
    return c in of.get(d, ())


def generic():
    """Names for messages of any centre."""
    found = {}
    for path in ("shortName.def", "localConcepts/ecmf/shortName.lte33.def", "shortName.lte33.def"):
        for keys in concepts(f"grib2/{path}"):
            if LOCAL not in keys and is_common(keys):
                found.setdefault((key(keys), *conditions(keys)), keys)
    named = {k: names2(255, keys) for k, keys in found.items()}
    named = {k: n for k, n in named.items() if n[1] not in ("unknown", "~")}
    statistics = {}
    for k, n in named.items():
        base = named.get(k[:-1])
        code = k[-1][1:]
        if base and k[-1][0] == "p" and n[1] == n[2] == PREFIX.get(code, "-") + base[1]:
            statistics.setdefault(k[:-1], set()).add(code)
    for k, n in named.items():
        if k[-1][0] == "p" and (k[-1][1:] in statistics.get(k[:-1], ()) or n[2].startswith(tuple(PREFIX.values()))):
            continue
        yield line(k[0], k[1:], n, "".join(sorted(statistics.get(k, ()))))


def local(centre, path, wanted):
    done = set()
    for keys in concepts(f"grib2/localConcepts/{path}"):
        k = (key(keys), f"c{centre}", *conditions(keys))
        if k not in done and wanted(keys):
            done.add(k)
            yield line(k[0], k[1:], names2(centre, keys))


def edition1():
    base = {"indicatorOfTypeOfLevel": 99}
    for centre, tables in ((ECMF, (128, 140, 228)), (255, (2,))):
        for table in tables:
            for n in range(1, 255):
                keys = {"centre": centre, "table2Version": table, "indicatorOfParameter": n} | base
                name = names(1, keys)
                if name[1] not in ("unknown", "~"):
                    yield line(f"t{table}.{n}", [f"c{centre}"] if centre != 255 else [], name)
    at_2m, at_10m, surface = (105, 2), (105, 10), (1, 0)
    pairs = {11: at_2m, 15: at_2m, 16: at_2m, 17: at_2m, 33: at_10m, 34: at_10m, 1: surface, 7: surface, 61: surface}
    for n, (kind, level) in pairs.items():
        keys = {"centre": 255, "table2Version": 2, "indicatorOfParameter": n}
        name = names(1, keys | {"indicatorOfTypeOfLevel": kind, "level": level})
        yield line(f"t2.{n}", [f"f{kind}" if kind == 1 else f"f{kind}:{level}"], name)


def main():
    print("# Names of parameters, made by make_parameters.py. Columns: parameter|conditions|number in the parameter")
    print("# database of ECMWF|short name|name of the variable, if it differs|units|name|CF standard name|statistics.")
    print("# A parameter is discipline.category.number of edition 2, or t and table.number of edition 1. Conditions are")
    print("# c: centre, f and s: type and value of the first and second fixed surface, p: statistical process. The")
    print("# statistics 0, 2, 3, 6 (mean, maximum, minimum, standard deviation) are those with a prefix to the names.")
    rows = [*generic(), *local(KWBC, "kwbc/shortName.def", lambda k: (k[PARAMETER[0]], k[PARAMETER[1]]) != ("3", "192"))]
    old = lambda k: k.get(LOCAL) == "1" and int(k["discipline"]) < 192
    rows += local(ECMF, "ecmf/shortName.lte33.def", old)
    of_edition_1 = lambda k: k["discipline"] == "192" and k["parameterCategory"] in ("128", "228")
    rows += local(ECMF, "ecmf/shortName.legacy.def", of_edition_1)
    rows += edition1()
    number = lambda row: [int(n) for n in re.findall(r"\d+", row.split("|")[0])]
    for row in sorted(rows, key=lambda r: (r[0] == "t", number(r), r)):
        print(row)


main()
