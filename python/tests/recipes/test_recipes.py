"""Each recipe gives the same in SQL and in xarray."""

import pytest
import tessera_sql as ts
import xarray as xr

from . import data
from .compare import TOLERANCE, compare
from .recipes import RECIPES

TEXTS = [
    pytest.param(recipe, text, id=recipe.name if i == 0 else f"{recipe.name}-in-plain-sql")
    for recipe in RECIPES
    for i, text in enumerate(recipe.texts)
]


@pytest.fixture(scope="module", params=TOLERANCE)
def world(request, tmp_path_factory):
    """The type of the cells and the relations."""
    return request.param, data.inputs(tmp_path_factory.mktemp("recipes"), dtype=request.param)


@pytest.mark.parametrize("recipe, text", TEXTS)
def test_sql_gives_what_xarray_gives(recipe, text, world, tmp_path):
    dtype, relations = world
    relations = {name: relations[name] for name in recipe.relations}
    result = ts.sql(text, locals=relations)
    if recipe.stored:
        result.to_zarr(tmp_path / "ours.zarr")
        got = xr.open_zarr(tmp_path / "ours.zarr", chunks=None)
        recipe.xarray(**relations).to_zarr(tmp_path / "theirs.zarr", zarr_format=2)
        want = xr.open_zarr(tmp_path / "theirs.zarr", chunks=None)
        assert {v: got[v].attrs for v in got.variables} == {v: want[v].attrs for v in want.variables}
    else:
        got, want = result.to_xarray(), recipe.xarray(**relations)
    compare(got, want, TOLERANCE[dtype])


def test_the_caller_needs_no_mapping(world):
    ds = world[1]["ds"]
    got = ts.sql("SELECT max(t2m, axis => 'time') AS t2m FROM ds").to_xarray()
    compare(got, ds.t2m.max("time"), 0)


def test_there_are_twenty_recipes():
    assert len(RECIPES) == 20
