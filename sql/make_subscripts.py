"""Writes random positional subscripts and what NumPy makes of them.

    python sql/make_subscripts.py > sql/random/subscripts.txt            # the sample in the tree
    python sql/make_subscripts.py 10000 7 > /tmp/subscripts.txt          # any number, of any seed
    SUBSCRIPTS=/tmp/subscripts.txt cargo test --test tests subscripts::

A line is `lengths;subscript;lengths of the result;its cells`, of `arange(n)` in those lengths, or `…;error` where
NumPy raises IndexError. Subscripts that give no cells and have positions out of range are left out: here they are
errors, in NumPy not always.
"""

import sys

import numpy as np

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 400
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 25
CELLS_MAX = 60
rng = np.random.default_rng(SEED)


# Lengths of dimensions of which a case has positions out of range.
beyond = []


def chance(p):
    return rng.random() < p


def bound(n):
    return "" if chance(0.3) else str(int(rng.integers(-n - 2, n + 3)))


def slices(n):
    lo, hi = bound(n), bound(n)
    if chance(0.5):
        return f"{lo}:{hi}"
    step = int(rng.choice([-3, -2, -1, 1, 2, 3, 7]))
    return f"{lo}: {hi}:{step}" if hi == "" else f"{lo}:{hi}:{step}"


def position(n):
    if chance(0.03) or n == 0:
        beyond.append(n)
        return n + int(rng.integers(0, 2)) if chance(0.5) else -n - 1
    return int(rng.integers(-n, n))


def positions(n, lengths):
    """A list of positions, nested as `lengths` says."""
    if not lengths:
        return str(position(n))
    return "[" + ", ".join(positions(n, lengths[1:]) for _ in range(lengths[0])) + "]"


def mask(lengths):
    if not lengths:
        return "true" if chance(0.4) else "false"
    return "[" + ", ".join(mask(lengths[1:]) for _ in range(lengths[0])) + "]"


def case():
    beyond.clear()
    shape = [int(rng.choice([0, 1, 2, 3, 4, 5], p=[0.04, 0.16, 0.25, 0.25, 0.2, 0.1])) for _ in range(rng.integers(1, 5))]
    # Arrays of one subscript mostly have lengths that broadcast.
    lengths = [int(n) for n in rng.integers(1, 4, size=rng.integers(1, 3))]
    parts, axis, ellipsis = [], 0, False
    while axis < len(shape):
        n, kind = shape[axis], rng.random()
        if chance(0.12):
            parts.append("NEWAXIS")
        if not ellipsis and chance(0.15):
            parts.append("...")
            ellipsis = True
            axis += int(rng.integers(0, len(shape) - axis + 1))
            continue
        if kind < 0.22:
            parts.append(str(position(n)))
        elif kind < 0.5:
            parts.append(slices(n))
        elif kind < 0.88:
            own = [1 if chance(0.15) else m for m in lengths[int(rng.integers(0, 2)) if chance(0.4) else 0:]]
            own = [m + 1 if chance(0.02) else m for m in own] or [2]
            parts.append(positions(n, own))
        else:
            width = int(rng.integers(1, min(3, len(shape) - axis + 1)))
            along = shape[axis:axis + width]
            if 0 in along:
                parts.append(":")
                width = 1
            else:
                parts.append(mask([m + 1 if chance(0.03) else m for m in along]))
            axis += width
            continue
        axis += 1
        if chance(0.15):
            break
    if not parts:
        parts = ["..."]
    if not ellipsis and chance(0.25):
        parts.append("...")
    if chance(0.03):
        parts.append("0")
    text = ", ".join(parts)
    names = {"NEWAXIS": "None", "true": "True", "false": "False", ": :": "::"}
    python = text
    for ours, theirs in names.items():
        python = python.replace(ours, theirs)
    array = np.arange(int(np.prod(shape))).reshape(shape)
    try:
        result = eval(f"array[{python}]", {"array": array, "__builtins__": {}})
    except IndexError:
        return shape, text, None
    return shape, text, np.asarray(result)


def show(lengths):
    return "x".join(map(str, lengths))


print("# Made by sql/make_subscripts.py from NumPy: do not edit.")
seen = set()
while len(seen) < COUNT:
    shape, text, result = case()
    if (line := f"{show(shape)};{text}") in seen or (result is not None and (result.size > CELLS_MAX or result.size == 0 and (beyond or "..." in text))):
        continue
    seen.add(line)
    print(line + (";error" if result is None else f";{show(result.shape)};{' '.join(map(str, result.ravel()))}"))
