"""Times the recipes in SQL and in xarray: `python python/tests/recipes/bench.py`.

Both sides start from the same objects in memory (or the same stores) and end with the result in memory (or in a
store). They alternate; the figures are medians, and the ratio is xarray's over Tessera's. Each answer is compared
first, which also warms both up.
"""

import argparse
import importlib.metadata
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

import tessera_sql as ts

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recipes import data  # noqa: E402
from recipes.compare import compare  # noqa: E402
from recipes.recipes import RECIPES  # noqa: E402

# Of the largest cell. Without flox, xarray sums long lines of float32 in float32 and is 2e-4 K off in `anomaly`.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


def arguments():
    p = argparse.ArgumentParser(prog="bench.py", description="Times the recipes in SQL and in xarray.")
    p.add_argument("--only", action="append", default=[], metavar="TEXT", help="recipes whose name contains it")
    p.add_argument("--scale", type=float, default=1.0, help="1 is a grid of 1.5 degrees, 0.1 one of 15")
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--dtype", choices=TOLERANCE, default="float32")
    p.add_argument("--plain-sql", action="store_true", help="times the second texts too")
    p.add_argument("--without-flox", action="store_true", help="xarray groups without flox, even if it is installed")
    return p.parse_args()


class Sides:
    """Both ways to answer a recipe, each without what it prepares and removes."""

    def __init__(self, recipe, text, relations, directory):
        self.recipe, self.text, self.relations, self.directory = recipe, text, relations, directory

    def inputs(self) -> dict:
        """The relations. Stores are opened anew: xarray retains what it has read."""
        fresh = self.relations | data.files(self.directory)
        return {name: fresh[name] for name in self.recipe.relations}

    def target(self, name) -> Path:
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def tessera(self):
        inputs, path = self.inputs(), self.target("ours.zarr")

        def run():
            result = ts.sql(self.text, locals=inputs)
            return result.to_zarr(path) if self.recipe.stored else result.to_xarray()

        seconds, result = timed(run)
        return seconds, xr.open_zarr(path, chunks=None) if self.recipe.stored else result

    def xarray(self):
        inputs, path = self.inputs(), self.target("theirs.zarr")

        def run():
            result = self.recipe.xarray(**inputs)
            return result.to_zarr(path, zarr_format=3, consolidated=False) if self.recipe.stored else result.load()

        seconds, result = timed(run)
        return seconds, xr.open_zarr(path, chunks=None, consolidated=False) if self.recipe.stored else result


def timed(f):
    start = time.perf_counter()
    result = f()
    return time.perf_counter() - start, result


def measure(sides, turns, tolerance):
    """The medians of both sides in seconds."""
    compare(sides.tessera()[1], sides.xarray()[1], tolerance)
    runs = {sides.tessera: [], sides.xarray: []}
    for turn in range(turns):
        for side in sorted(runs, key=list(runs).index, reverse=turn % 2 == 1):
            runs[side].append(side()[0])
    return [statistics.median(r) for r in runs.values()]


def versions() -> str:
    """xarray, what it may use, and what it does not find."""
    found = []
    for name in ("xarray", "numpy", "flox", "bottleneck", "numbagg", "scipy", "zarr"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> int:
    args = arguments()
    if args.without_flox:
        xr.set_options(use_flox=False)
    print(versions() + (" (flox unused)" if args.without_flox else ""))
    ratios, failed = [], 0
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        relations = data.inputs(directory, args.scale, args.dtype)
        sizes = dict(relations["ds"].sizes)
        print(f"ds {sizes}, {relations['ds'].t2m.nbytes / 2**20:.0f} MiB per variable of {args.dtype}")
        print(f"{'recipe':<28}{'tessera ms':>12}{'xarray ms':>12}{'ratio':>8}")
        for recipe in RECIPES:
            if args.only and not any(text in recipe.name for text in args.only):
                continue
            for i, text in enumerate(recipe.texts if args.plain_sql else recipe.texts[:1]):
                name = recipe.name if i == 0 else f"{recipe.name}, plain SQL"
                sides = Sides(recipe, text, relations, directory)
                try:
                    ours, theirs = measure(sides, args.turns, TOLERANCE[args.dtype])
                except (AssertionError, ts.Error) as error:
                    failed += 1
                    print(f"{name:<28}  failed: {str(error).strip().splitlines()[0]}", flush=True)
                    continue
                ratios.append(theirs / ours)
                print(f"{name:<28}{ours * 1e3:12.1f}{theirs * 1e3:12.1f}{ratios[-1]:8.2f}", flush=True)
    if ratios:
        mean = np.exp(np.mean(np.log(ratios)))
        print(f"as fast or faster in {sum(r >= 1 for r in ratios)} of {len(ratios)}, geometric mean {mean:.2f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
