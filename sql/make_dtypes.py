"""Writes sql/random/dtypes.txt: the types that NumPy's elementwise functions give, for all pairs of types and literals.

    python sql/make_dtypes.py > sql/random/dtypes.txt

A line is `call; call; …: type`, or `…: error` where NumPy raises TypeError. There is no float16 here: where NumPy would
make it of bools and 8-bit integers alone, it is float64.
"""

import warnings

import numpy as np

warnings.simplefilter("ignore")
TYPES = {f"t_{t.replace('?', 'bool')}": np.ones(1, t) for t in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]}
LITERALS = {"2": 2, "2.0": 2.0}
BINARY = ["add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "remainder", "mod", "power", "fmod", "maximum",
          "minimum", "fmax", "fmin", "arctan2", "hypot", "copysign", "nextafter", "logaddexp", "equal", "less", "logical_and",
          "bitwise_and", "bitwise_xor", "left_shift", "right_shift"]
UNARY = ["sqrt", "cbrt", "exp", "log", "log1p", "sin", "arctan", "degrees", "radians", "rint", "floor", "ceil", "trunc", "abs", "sign",
         "square", "negative", "positive", "logical_not", "isnan", "signbit", "bitwise_not"]


def dtype(f, *args):
    try:
        name = f(*args).dtype.name
    except TypeError:
        return "error"
    return "float64" if name == "float16" else name


print("# Made by sql/make_dtypes.py from NumPy: do not edit.")
for name in BINARY + UNARY:
    f, found = getattr(np, name), {}
    for a, x in TYPES.items():
        if name in UNARY:
            found.setdefault(dtype(f, x), []).append(f"{name}({a})")
            continue
        for b, y in {**TYPES, **LITERALS}.items():
            found.setdefault(dtype(f, x, y), []).append(f"{name}({a}, {b})")
        for b, y in LITERALS.items():
            found.setdefault(dtype(f, y, x), []).append(f"{name}({b}, {a})")
    for result, calls in found.items():
        print("; ".join(calls) + f": {result}")
