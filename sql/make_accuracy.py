"""Writes crates/kernels/testdata/accuracy/*: what functions of floats are, to high precision.

    pip install numpy scipy mpmath && python sql/make_accuracy.py

Running it again gives the same bytes. Each function has a file for each of float32 and float64, little-endian records
of one argument (or two), the exact result rounded to the type, and one signed byte: how far the exact result is from
the rounded one, in 1/128 of the distance from it to the next float away from zero. The byte is -128 where the result is
no such number (NaN, an infinity, or for an infinite or NaN argument): then it is the result of NumPy, which has to be
met to the bit but for the bits of a NaN.

`bounds.txt` has a line for each file: its name, the number of records, how many units in the last place a result may
be off, and the worst that NumPy is on the same records. What may be off is 1 where NumPy is within 1, else 4. The
numbers near multiples of a quarter turn, at the end of three files, do not count for that: NumPy is off by thousands
there.
"""

import math
from pathlib import Path

import mpmath
import numpy as np
import scipy.special

OUT = Path(__file__).resolve().parent.parent / "crates" / "kernels" / "testdata" / "accuracy"
EXACTLY_NUMPY = -128
mpmath.mp.prec = 200



def log10(x):
    return mpmath.log(x, 10)


def log2(x):
    return mpmath.log(x, 2)


def cbrt(x):
    return mpmath.sign(x) * mpmath.root(abs(x), 3)


def wide(f):
    """Of arguments up to 2^1024: the reduction takes as many bits as the argument has."""
    def g(x):
        with mpmath.workprec(1300):
            return f(x)

    return g


def small(f):
    """Where the result is as small as the argument, which cancels."""
    def g(x):
        with mpmath.workprec(2400):
            return f(x)

    return g


# Name: NumPy's, the exact one, and ranges (low, high) of magnitudes with both signs unless the low one is positive.
EVERY = (-1e300, 1e300)
UNARY = {
    "exp": (np.exp, mpmath.exp, [(-745, 709.7), (-1, 1)]),
    "exp2": (np.exp2, lambda x: mpmath.power(2, x), [(-1074, 1023.9), (-1, 1)]),
    "expm1": (np.expm1, small(mpmath.expm1), [(-40, 709.7), (-1, 1), (-1e-10, 1e-10)]),
    "log": (np.log, mpmath.log, [(0, 1e300), (0.5, 2), (0, 1e-300)]),
    "log2": (np.log2, log2, [(0, 1e300), (0.5, 2), (0, 1e-300)]),
    "log10": (np.log10, log10, [(0, 1e300), (0.5, 2), (0, 1e-300)]),
    "log1p": (np.log1p, small(mpmath.log1p), [(-0.99, 1e300), (-0.5, 1), (-1e-10, 1e-10)]),
    "sin": (np.sin, wide(mpmath.sin), [(-10, 10), (-1e5, 1e5), (-1e10, 1e10), EVERY]),
    "cos": (np.cos, wide(mpmath.cos), [(-10, 10), (-1e5, 1e5), (-1e10, 1e10), EVERY]),
    "tan": (np.tan, wide(mpmath.tan), [(-10, 10), (-1e5, 1e5), (-1e10, 1e10), EVERY]),
    "arcsin": (np.arcsin, mpmath.asin, [(-1, 1), (-1e-5, 1e-5)]),
    "arccos": (np.arccos, mpmath.acos, [(-1, 1), (-1e-5, 1e-5)]),
    "arctan": (np.arctan, mpmath.atan, [(-10, 10), EVERY]),
    "sinh": (np.sinh, small(mpmath.sinh), [(-710, 710), (-1, 1), (-1e-5, 1e-5)]),
    "cosh": (np.cosh, mpmath.cosh, [(-710, 710), (-1, 1)]),
    "tanh": (np.tanh, small(mpmath.tanh), [(-20, 20), (-1, 1), (-1e-5, 1e-5)]),
    "arcsinh": (np.arcsinh, small(mpmath.asinh), [(-10, 10), (-1e-5, 1e-5), EVERY]),
    "arccosh": (np.arccosh, mpmath.acosh, [(1, 10), (1, 1e300)]),
    "arctanh": (np.arctanh, small(mpmath.atanh), [(-1, 1), (-1e-5, 1e-5)]),
    "sqrt": (np.sqrt, mpmath.sqrt, [(0, 1e300), (0, 10)]),
    "cbrt": (np.cbrt, cbrt, [(-10, 10), EVERY]),
    "erf": (scipy.special.erf, small(mpmath.erf), [(-6, 6), (-1, 1), (-1e-5, 1e-5)]),
    "erfc": (scipy.special.erfc, lambda x: mpmath.erfc(x) if x < 30 else mpmath.mpf(0), [(-6, 26.5), (-1, 1)]),
}
BINARY = {
    "power": (np.power, mpmath.power, [((0, 10), (-50, 50)), ((0.9, 1.1), (-5000, 5000)), ((0, 1e300), (-1, 1))]),
    "arctan2": (np.arctan2, mpmath.atan2, [((-10, 10), (-10, 10)), ((-1e-5, 1e-5), (-1e5, 1e5)), (EVERY, EVERY)]),
    "hypot": (np.hypot, lambda x, y: mpmath.sqrt(x * x + y * y), [((-10, 10), (-10, 10)), (EVERY, EVERY)]),
}
COUNT = {np.float64: 180, np.float32: 150}


def span(rng, low, high, n, dtype):
    """Half of the numbers even over the range, half of them even over its exponents."""
    info = np.finfo(dtype)
    low, high = max(low, -float(info.max) / 4), min(max(high, float(info.tiny) * 1e6), float(info.max) / 4)
    even = rng.uniform(low, high, n // 2) if high - low < 1e250 else rng.uniform(-1, 1, n // 2) * high
    least = math.log(max(abs(low) if low > 0 else high * 1e-20, float(info.tiny)))
    sizes = np.exp(rng.uniform(least, math.log(high), n - n // 2))
    signs = np.where(rng.random(n - n // 2) < 0.5, -1, 1) if low < 0 else 1
    sizes = np.clip(sizes * signs, low, high)
    return np.concatenate([even, sizes]).astype(dtype)


def specials(dtype):
    """Zeros, infinities, NaN, subnormals, halves, ones, neighbours of one, multiples of a half of pi, huge numbers."""
    info = np.finfo(dtype)
    x = [0.0, np.inf, np.nan, info.smallest_subnormal, 3 * float(info.smallest_subnormal), info.tiny, info.max, 0.5, 1, 2, 3, 10, 100, info.eps]
    x += [np.nextafter(dtype(1), dtype(0)), np.nextafter(dtype(1), dtype(2)), 700, 710, 745, 746, 1024, 88, 89, 103, 104, 128, 127, 149, 150]
    x += [k * math.pi / 2 for k in (1, 2, 3, 4, 11, 1000, 100001)] + [2.0**k for k in (20, 26, 31, 52, 53, 63, 100)] + [1e22 if dtype is np.float64 else 1e15]
    x = np.array(x, dtype=np.float64)
    with np.errstate(over="ignore"):
        return np.concatenate([x, -x]).astype(dtype)


def near_turns(dtype):
    """Of each binade up to 2^60 the number that is about the nearest to a multiple of a quarter turn."""
    bits = np.finfo(dtype).nmant + 1
    near = []
    with mpmath.workprec(300):
        for exponent in range(61):
            # m units are q quarter turns: m and q of the convergents of the fraction of both.
            part = mpmath.ldexp(1, exponent - bits + 1) / (mpmath.pi / 2)
            m, before, rest = 1, 0, part
            while True:
                rest = 1 / (rest - mpmath.floor(rest))
                after = m * int(mpmath.floor(rest)) + before
                if after >= 2**bits:
                    break
                m, before = after, m
            # A multiple of it has all bits.
            m *= -(-(2 ** (bits - 1)) // m)
            near.append(math.ldexp(m, exponent - bits + 1))
    x = np.array(near)
    return np.concatenate([x, -x]).astype(dtype)


def unit_of(value):
    """The distance to the next float away from zero; of the greatest one that to the next toward zero."""
    with np.errstate(over="ignore"):
        unit = float(np.spacing(np.abs(value)))
    return unit if math.isfinite(unit) else float(np.spacing(np.nextafter(np.abs(value), value.dtype.type(0))))


def rounded(exact, dtype):
    """The nearest float, and the rest in 1/128 of the distance to the next float away from zero."""
    info = np.finfo(dtype)
    if not exact:
        return dtype(0), 0
    m, e = mpmath.frexp(exact)
    bits = info.nmant + 1
    e = max(int(e), int(info.minexp) + 1)
    unit = mpmath.ldexp(1, e - bits)
    n = int(mpmath.nint(exact / unit))
    if abs(n * unit) > mpmath.mpf(float(info.max)):
        return dtype(math.copysign(math.inf, n)), EXACTLY_NUMPY
    value = dtype(math.ldexp(n, e - bits))
    # At a power of two the distance away from zero is that of the next binade.
    step = mpmath.mpf(unit_of(value))
    return value, int(mpmath.nint((exact - mpmath.mpf(float(value))) / step * 128))


def records(f, exact, arguments, dtype, count):
    """Arguments, results, rests; and how far NumPy is off at most in the first records."""
    with np.errstate(all="ignore"):
        theirs = f(*arguments).astype(dtype)
    worst, values, rests = 0.0, [], []
    for i, x in enumerate(zip(*arguments, strict=True)):
        got = theirs[i]
        # mpmath has no zeros with signs.
        zero = got == 0 or (len(x) > 1 and any(v == 0 for v in x))
        if not np.isfinite(got) or not all(np.isfinite(v) for v in x) or zero:
            value, rest = got, EXACTLY_NUMPY
            # An overflow or underflow that is not one is an error of NumPy's; then the exact result is asked for.
            if all(np.isfinite(v) and v != 0 for v in x) and not np.isnan(got):
                try:
                    real = exact(*(mpmath.mpf(float(v)) for v in x))
                    better, off = rounded(real, dtype) if not isinstance(real, mpmath.mpc) and mpmath.isfinite(real) else (got, 0)
                    if better != got:
                        value, rest = better, off
                except (ZeroDivisionError, ValueError, OverflowError):
                    pass
        else:
            real = exact(*(mpmath.mpf(float(v)) for v in x))
            value, rest = rounded(mpmath.re(real), dtype)
            if rest != EXACTLY_NUMPY:
                off = abs((float(got) - float(value)) / unit_of(value) - rest / 128)
                worst = max(worst, off) if i < count else worst
        values.append(value)
        rests.append(rest)
    return np.array(values, dtype=dtype), np.array(rests, dtype=np.int8), worst


def write(name, f, exact, arguments, dtype, count=None):
    """One file; its line of bounds.txt, for which the first records count."""
    values, rests, worst = records(f, exact, arguments, dtype, count or len(arguments[0]))
    fields = [(f"x{i}", np.dtype(dtype).newbyteorder("<")) for i in range(len(arguments))]
    rows = np.zeros(len(values), dtype=[*fields, ("value", np.dtype(dtype).newbyteorder("<")), ("rest", "i1")])
    for i, x in enumerate(arguments):
        rows[f"x{i}"] = x
    rows["value"], rows["rest"] = values, rests
    file = f"{name}.{np.dtype(dtype).name}"
    (OUT / file).write_bytes(rows.tobytes())
    return f"{file} {len(rows)} {1 if worst <= 1 else 4} {worst:.3f}"


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = []
    for dtype in (np.float64, np.float32):
        rng = np.random.default_rng(20)
        n = COUNT[dtype]
        for name, (f, exact, ranges) in UNARY.items():
            x = np.concatenate([*(span(rng, *r, n, dtype) for r in ranges), specials(dtype)])
            count = len(x)
            if name in ("sin", "cos", "tan"):
                x = np.concatenate([x, near_turns(dtype)])
            lines.append(write(name, f, exact, [x], dtype, count))
        some = specials(dtype)
        some = np.concatenate([some[:18], some[len(some) // 2 :][:18]])
        for name, (f, exact, ranges) in BINARY.items():
            pairs = [(span(rng, *a, n, dtype), rng.permutation(span(rng, *b, n, dtype))) for a, b in ranges]
            x = np.concatenate([*(p[0] for p in pairs), np.repeat(some, len(some))])
            y = np.concatenate([*(p[1] for p in pairs), np.tile(some, len(some))])
            lines.append(write(name, f, exact, [x, y], dtype))
    (OUT / "bounds.txt").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
