"""Loops that numba compiles for all threads: what a careful programmer writes by hand. Sums may be reordered."""

import math

import numpy as np
from numba import config, njit, prange

config.THREADING_LAYER = "workqueue"
reordered = njit(parallel=True, fastmath={"reassoc", "contract", "nsz"}, cache=True)
exact = njit(parallel=True, cache=True)


@reordered
def fused_sum(a, b, c):
    s = 0.0
    for i in prange(a.size):
        s += np.sqrt(a[i] * a[i] + b[i] * b[i]) * np.exp(-c[i])
    return s


@reordered
def dot(a, b):
    s = 0.0
    for i in prange(a.size):
        s += a[i] * b[i]
    return s


@reordered
def mean_square_difference(a, b):
    s = 0.0
    for i in prange(a.size):
        d = a[i] - b[i]
        s += d * d
    return s / a.size


@exact
def fma(a, b, c, out):
    for i in prange(a.size):
        out[i] = a[i] * b[i] + c[i]
    return out


@exact
def polynomial(a, out):
    for i in prange(a.size):
        x = a[i]
        out[i] = (((0.5 * x - 1.25) * x + 2.0) * x - 0.75) * x + 1.5
    return out


@exact
def choose(a, b, c, out):
    for i in prange(a.size):
        out[i] = b[i] if a[i] > 0.5 else c[i]
    return out


@reordered
def sum_where(a, b):
    s = 0.0
    for i in prange(a.size):
        s += b[i] if a[i] > 0.5 else 0.0
    return s


@reordered
def moments(x):
    s = 0.0
    q = 0.0
    shift = x[0]
    for i in prange(x.size):
        d = x[i] - shift
        s += d
        q += d * d
    n = x.size
    mean = s / n
    return n * shift + s, shift + mean, math.sqrt(max(q / n - mean * mean, 0.0))


@reordered
def standardise(x, out):
    rows, columns = x.shape
    parts = 16
    s = np.zeros((parts, columns))
    q = np.zeros((parts, columns))
    for p in prange(parts):
        for i in range(rows * p // parts, rows * (p + 1) // parts):
            for j in range(columns):
                d = x[i, j] - x[0, j]
                s[p, j] += d
                q[p, j] += d * d
    mean = s.sum(0) / rows
    scale = 1.0 / np.sqrt(q.sum(0) / rows - mean * mean)
    shift = mean + x[0]
    for i in prange(rows):
        for j in range(columns):
            out[i, j] = (x[i, j] - shift[j]) * scale[j]
    return out


@reordered
def sum_rows(x):
    """Over axis 0 of two dimensions, in the type of the sum."""
    rows, columns = x.shape
    parts = 16
    s = np.zeros((parts, columns))
    for p in prange(parts):
        for i in range(rows * p // parts, rows * (p + 1) // parts):
            for j in range(columns):
                s[p, j] += x[i, j]
    return s.sum(0)


@reordered
def sum_columns(x):
    """Over axis 1 of two dimensions."""
    out = np.empty(x.shape[0])
    for i in prange(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s
    return out


@reordered
def sum_all(x):
    s = 0
    for i in prange(x.size):
        s += x[i]
    return s


@exact
def add_transposed(x, out):
    n = x.shape[0]
    block = 64
    for bi in prange((n + block - 1) // block):
        for bj in range((n + block - 1) // block):
            for i in range(bi * block, min(bi * block + block, n)):
                for j in range(bj * block, min(bj * block + block, n)):
                    out[i, j] = x[i, j] + x[j, i]
    return out


@exact
def transpose(x, out):
    rows, columns = x.shape
    block = 64
    for bj in prange((columns + block - 1) // block):
        for bi in range((rows + block - 1) // block):
            for j in range(bj * block, min(bj * block + block, columns)):
                for i in range(bi * block, min(bi * block + block, rows)):
                    out[j, i] = x[i, j]
    return out


@exact
def rolling_mean(x, width, out):
    """Along the first axis of [time, cells]; NaN where the window is not whole."""
    times, cells = x.shape
    parts = 64
    for p in prange(parts):
        lo, hi = cells * p // parts, cells * (p + 1) // parts
        s = np.zeros(hi - lo)
        for t in range(times):
            for j in range(lo, hi):
                s[j - lo] += x[t, j]
            if t >= width:
                for j in range(lo, hi):
                    s[j - lo] -= x[t - width, j]
            for j in range(lo, hi):
                out[t, j] = s[j - lo] / width if t >= width - 1 else np.nan
    return out


@exact
def group_mean(x, group, groups):
    """Means of rows by group: [time, cells] → [groups, cells]."""
    times, cells = x.shape
    parts = 16
    out = np.zeros((groups, cells))
    n = np.zeros(groups)
    for t in range(times):
        n[group[t]] += 1
    for p in prange(parts):
        lo, hi = cells * p // parts, cells * (p + 1) // parts
        for t in range(times):
            for j in range(lo, hi):
                out[group[t], j] += x[t, j]
        for g in range(groups):
            for j in range(lo, hi):
                out[g, j] /= n[g]
    return out


@exact
def anomalies(x, group, mean, out):
    times, cells = x.shape
    for t in prange(times):
        for j in range(cells):
            out[t, j] = x[t, j] - mean[group[t], j]
    return out


@exact
def cumsum_rows(x, out):
    times, cells = x.shape
    parts = 16
    for p in prange(parts):
        lo, hi = cells * p // parts, cells * (p + 1) // parts
        for j in range(lo, hi):
            out[0, j] = x[0, j]
        for t in range(1, times):
            for j in range(lo, hi):
                out[t, j] = out[t - 1, j] + x[t, j]
    return out


@exact
def difference(x, out):
    times, cells = x.shape
    for t in prange(times - 1):
        for j in range(cells):
            out[t, j] = x[t + 1, j] - x[t, j]
    return out


@reordered
def histogram(x, bins, lo, hi):
    parts = 16
    counts = np.zeros((parts, bins), np.int64)
    scale = bins / (hi - lo)
    for p in prange(parts):
        for i in range(x.size * p // parts, x.size * (p + 1) // parts):
            v = x[i]
            if v >= lo and v <= hi:
                counts[p, min(int((v - lo) * scale), bins - 1)] += 1
    return counts.sum(0)


@reordered
def normal_moments(n):
    """Mean and deviation of normal numbers made on the fly, with numba's generator."""
    parts = 64
    s = np.zeros(parts)
    q = np.zeros(parts)
    for p in prange(parts):
        a, b = 0.0, 0.0
        for _ in range(n // parts):
            v = np.random.standard_normal()
            a += v
            b += v * v
        s[p], q[p] = a, b
    m = n // parts * parts
    mean = s.sum() / m
    return mean, math.sqrt(q.sum() / m - mean * mean)


@reordered
def uniform_sum(n):
    parts = 64
    s = np.zeros(parts)
    for p in prange(parts):
        a = 0.0
        for _ in range(n // parts):
            a += np.random.random()
        s[p] = a
    return s.sum()


@reordered
def generated_mean(rows, columns):
    """Mean over axis 0 of sqrt(arange(rows * columns).reshape(rows, columns)), never stored."""
    parts = 64
    s = np.zeros((parts, columns))
    for p in prange(parts):
        for i in range(rows * p // parts, rows * (p + 1) // parts):
            first = float(i * columns)
            for j in range(columns):
                s[p, j] += np.sqrt(first + j)
    return s.sum(0) / rows


@exact
def exp(a, out):
    for i in prange(a.size):
        out[i] = np.exp(a[i])
    return out


@exact
def log(a, out):
    for i in prange(a.size):
        out[i] = np.log(a[i])
    return out


@exact
def sin(a, out):
    for i in prange(a.size):
        out[i] = np.sin(a[i])
    return out


@exact
def cos(a, out):
    for i in prange(a.size):
        out[i] = np.cos(a[i])
    return out


@exact
def tanh(a, out):
    for i in prange(a.size):
        out[i] = np.tanh(a[i])
    return out


@exact
def sqrt(a, out):
    for i in prange(a.size):
        out[i] = np.sqrt(a[i])
    return out


@exact
def cast(a, out):
    for i in prange(a.size):
        out[i] = a[i]
    return out
