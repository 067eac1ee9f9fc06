"""Whether an answer is what xarray gives."""

import numpy as np
import xarray as xr

# Of the largest cell. In float32 it is xarray that sums in float32; Tessera sums in float64.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def compare(got, want, tolerance):
    """Asserts the same variables with the same dimensions, cells, and labels of every labelled dimension."""
    if isinstance(want, xr.Dataset):
        assert sorted(got.data_vars) == sorted(want.data_vars)
        for name in want.data_vars:
            compare(got[name], want[name], tolerance)
        return
    assert got.dims == want.dims
    assert sorted(got.indexes) == sorted(want.indexes)
    for name in want.indexes:
        np.testing.assert_array_equal(got[name].values, want[name].values, err_msg=name)
    if want.dtype.kind == "f":
        largest = np.nanmax(np.abs(want.values))
        np.testing.assert_allclose(got.values, want.values, rtol=tolerance, atol=tolerance * largest)
    else:
        np.testing.assert_array_equal(got.values, want.values)
