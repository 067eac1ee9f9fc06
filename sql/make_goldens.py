"""Writes sql/**/*.slt (all but sql/errors, written by hand) and sql/quickstart.expected.md.

    pip install numpy xarray zarr numcodecs pandas cftime scipy duckdb h5netcdf netCDF4 dask tifffile imagecodecs cfgrib eccodes safetensors && python sql/make_goldens.py

The expected values come from NumPy and xarray; running it again gives the same bytes. The cases are in
sql/goldens/*.py, one line each.
"""

import importlib
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
warnings.simplefilter("ignore")

from goldens import core  # noqa: E402

for name in ("queries", "keep", "subscripts", "labels", "geoscience", "cells", "elementwise", "dense", "keys", "tables", "arrow_files", "formats", "dialect", "forms", "linalg", "quickstart", "calendars", "islands", "bridges", "neighbours", "order", "bins", "tier1", "accuracy", "tensors", "coverage", "real_files", "masks", "stores", "names", "merged", "floats", "narrow", "ties", "shifts", "files", "standard", "texts", "repeated", "series", "duckdb", "lists", "correlated", "chained", "frames", "mixtures", "casts", "inside", "few_values", "times", "totals", "newcomers", "duckdb_answers", "duckdb_more", "strangers"):
    if (HERE / "goldens" / f"{name}.py").exists():
        importlib.import_module(f"goldens.{name}")

for script in core.SCRIPTS:
    path = HERE / f"{script.path}.slt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.text())
print(f"{len(core.SCRIPTS)} scripts, {sum(len(s.records) for s in core.SCRIPTS)} records")
