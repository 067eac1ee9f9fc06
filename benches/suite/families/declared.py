"""Everyday work on cubes as xarray writes them, which declare NaN missing and have none, against the same cells of an array
that declares nothing. The peer is Tessera itself: a ratio of 1 says that a mask that masks nothing costs nothing."""

import numpy as np

from .. import files
from ..workload import Workload

EVERYDAY = (
    ("mean over lon", "mean($, 'lon')"),
    ("mean over time", "mean($, 'time')"),
    ("mean over lat, lon", "mean($, ['lat', 'lon'])"),
    ("mean of all", "mean($)"),
    ("sum over lat", "sum($, 'lat')"),
    ("max over time", "max($, 'time')"),
    ("min over lon", "min($, 'lon')"),
    ("std over time", "std($, 'time')"),
    ("var of all", "var($)"),
    ("argmax over time", "argmax($, 0)"),
    ("count above 280", "sum($ > 280)"),
    ("anomaly", "$ - mean($, 'time')"),
    ("standardised", "($ - mean($, 'time')) / std($, 'time')"),
    ("kelvin to celsius", "$ - 273.15"),
    ("where above 280", "where($ > 280, $, 0)"),
    ("cumsum over time", "cumsum($, 0)"),
    ("rolling mean of 7 days", "rolling($, 'mean', time => 7)"),
    ("rolling max of 30 days", "rolling($, 'max', time => 30)"),
    ("monthly means", "groupby($, 'mean', by => month(time))"),
    ("median over time", "median($[0:100], 0)"),
    ("quantile over lon", "quantile($, 0.9, 2)"),
    ("sort over lon", "sort($[0:100], 2)"),
    ("histogram", "histogram($, 100, [180, 340]).counts"),
    ("diff over time", "diff($, axis => 0)"),
    ("a box", "$[:, 10:60, 20:90]"),
    ("coarsen lat by 2", "coarsen($[:, 0:100], 'mean', lat => 2)"),
)


def workloads(context):
    shape = (400, context.side(180), context.side(360))
    chunk = (25, *shape[1:])
    size = 4.0 * np.prod(shape)
    for codec, only in (("none", None), ("zstd", {"mean over lon", "max over time", "cumsum over time", "histogram"})):
        store = context.data / f"declared-{shape[1]}-{shape[2]}-{codec}.zarr"

        def prepare(store=store, codec=codec):
            files.cube(store, shape, chunk, codec, declared=True)

        for name, text in EVERYDAY:
            if only is not None and name not in only:
                continue
            ask = lambda of: f"SELECT {text.replace('$', of)} AS r FROM '{store}'"
            yield Workload(f"declared: {name}, {codec}", ask("d"), twin=ask("v"), prepare=prepare, held=size, peers={}, rtol=0)
    # Kept without a mask.
    for name, text in EVERYDAY[:6]:
        ask = lambda of: f"SELECT {text.replace('$', of)} AS r FROM {of}"
        keep = lambda of: f"CREATE TEMP TENSOR {of} AS SELECT {of} FROM '{store}';"
        yield Workload(f"declared: {name}, kept", ask("d"), twin=ask("v"), setup=keep("d") + keep("v"), prepare=prepare, held=3 * size, peers={}, rtol=0)
