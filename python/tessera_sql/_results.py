"""Answers of the engine as NumPy arrays and xarray objects."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _spans
from ._errors import Error, UserError, usage

if TYPE_CHECKING:
    import xarray as xr

    from . import _native

#: Arrays, and masked arrays where cells are masked.
Array = np.ndarray[Any, Any]

#: Rows that become tuples at once when rows are taken one by one.
_PAGE_ROWS = 1024


class Pages:
    """Rows that become tuples page by page, as they are taken. One thread at a time may use it."""

    def __init__(self, reader: _native.Reader | None, first: Iterable[tuple[Any, ...]] = ()) -> None:
        self._reader = reader
        self._page = deque(first)

    def take(self, count: int | None) -> list[tuple[Any, ...]]:
        """The next rows, at most ``count``, or all."""
        while self._reader is not None and (count is None or len(self._page) < count):
            page = self._reader.take(None if count is None else max(count - len(self._page), _PAGE_ROWS))
            if count is None or not page:
                self._reader = None
            self._page.extend(page)
        if count is None or count >= len(self._page):
            rows = list(self._page)
            self._page.clear()
            return rows
        return [self._page.popleft() for _ in range(count)]


def calendar_of(dtype: str) -> str | None:
    """The calendar of a dtype ``datetime64[us, noleap]``; None for all others."""
    if dtype.startswith("datetime64[us, "):
        return dtype[len("datetime64[us, ") : -1]
    return None


def times_to_numpy(values_us: Array, calendar: str | None) -> Array:
    """Moments, microseconds since 1970-01-01 of the calendar, as ``datetime64[us]`` or, in other calendars than the
    standard one, as an object array of cftime's dates (``None`` where they are missing)."""
    if calendar is None:
        return values_us.view("datetime64[us]")
    try:
        import cftime
    except ImportError:
        raise Error(
            f"times of the calendar `{calendar}` need cftime",
            code="missing_package",
            hint="pip install cftime, or pip install 'tessera-sql[xarray]'",
        ) from None

    missing = values_us == np.iinfo(np.int64).min
    dates = cftime.num2date(
        np.where(missing, 0, values_us), "microseconds since 1970-01-01", calendar=calendar
    )
    dates = np.asarray(dates, dtype=object).reshape(values_us.shape)
    dates[missing] = None
    return dates


def _array(dtype: str, memory: Any, shape: tuple[int, ...]) -> Array:
    calendar = calendar_of(dtype)
    if calendar is None and not dtype.startswith("datetime64"):
        return np.frombuffer(memory, dtype=dtype).reshape(shape)
    return times_to_numpy(np.frombuffer(memory, dtype=np.int64).reshape(shape), calendar)


def _mask(valid: Any, shape: tuple[int, ...]) -> Array:
    """True where a byte of validity is 0."""
    mask: Array = np.frombuffer(valid, dtype=np.uint8).reshape(shape) == 0
    return mask


def to_numpy(tensor: _native.Tensor) -> Array:
    """The cells without a copy: a masked array if any is masked."""
    data, valid = tensor.cells()
    array = _array(tensor.dtype, data, tensor.shape)
    return array if valid is None else np.ma.MaskedArray(array, mask=_mask(valid, tensor.shape))


def column_to_numpy(column: tuple[str, Any, Any | None] | list[Any]) -> Array:
    """A column of rows: a masked array if it has NULLs, an object array for texts and lists."""
    if isinstance(column, list):
        array = np.empty(len(column), dtype=object)
        array[:] = column
        return array
    dtype, memory, valid = column
    size = 1 if dtype == "bool" else np.dtype(dtype.partition("[")[0]).itemsize
    array = _array(dtype, memory, (len(memory) // size,))
    if valid is None:
        return array
    return np.ma.MaskedArray(array, mask=_mask(valid, array.shape))


def columns_to_numpy(rows: _native.Rows) -> dict[str, Array]:
    """The columns by name.

    Raises:
        UserError: two of them, of a join, have one name.
    """
    arrays: dict[str, Array] = {}
    for name, column in rows.arrays():
        if name in arrays:
            raise usage(f"two columns are named `{name}`", "give each a name of its own: `SELECT a.k AS k, b.k AS l`")
        arrays[name] = column_to_numpy(column)
    return arrays


def labels(label: tuple[str, str, Any, str]) -> tuple[str, Array, dict[str, Any]]:
    """The labels of a dimension: name, values, attributes."""
    name, dtype, values, attrs = label
    if dtype == "str":
        array: Array = np.array(values, dtype=object if not values else None)
    elif dtype.startswith("datetime64"):
        array = times_to_numpy(np.frombuffer(values, dtype=np.int64), calendar_of(dtype))
    elif dtype.startswith("float"):
        array = np.frombuffer(values, dtype=np.float64).astype(dtype, copy=False)
    else:
        array = np.frombuffer(values, dtype=np.int64).astype(dtype, copy=False)
    return name, array, json.loads(attrs)


def dim_names(tensor: _native.Tensor) -> list[str]:
    """Names of the dimensions: ``dim_0``, … for those without a name, each once."""
    names: list[str] = []
    for axis, name in enumerate(tensor.dims):
        unique = base = f"dim_{axis}" if name is None else name
        number = 0
        while unique in names:
            number += 1
            unique = f"{base}_{number}"
        names.append(unique)
    return names


def _variables(tensor: _native.Tensor) -> tuple[xr.Variable, dict[str, xr.Variable]]:
    """A tensor as a variable, and its coordinates."""
    import xarray as xr

    data, valid = tensor.cells()
    array = _array(tensor.dtype, data, tensor.shape)
    dims = dim_names(tensor)
    coords: dict[str, xr.Variable] = {}
    for dim, label in zip(dims, tensor.labels, strict=True):
        if label is not None:
            name, values, attrs = labels(label)
            values, attrs = _spans.decoded(name, values, None, attrs)
            coords[name] = xr.Variable((dim,), values, attrs)
    mask = None if valid is None else _mask(valid, tensor.shape)
    array, attrs = _spans.decoded(tensor.name, array, mask, json.loads(tensor.attrs))
    # Masked floats are NaN and masked times NaT already. Masked integers stay integers: their mask goes along.
    if mask is not None and array.dtype.kind not in "fmMO":
        about = {"long_name": f"True where {tensor.name} is masked"}
        coords[f"{tensor.name}_mask"] = xr.Variable(dims, mask, about)
    return xr.Variable(dims, array, attrs), coords


def to_dataarray(tensor: _native.Tensor) -> xr.DataArray:
    """A tensor with its dimensions, coordinates and attributes."""
    import xarray as xr

    variable, coords = _variables(tensor)
    return xr.DataArray(variable, coords=coords, name=tensor.name, fastpath=False)


def to_dataset(reply: _native.Reply) -> xr.Dataset:
    """The tensors of an answer as a dataset.

    Items that are coordinates of their dataset are coordinates, and so are those that only repeat labels of others.
    """
    import xarray as xr

    # Coordinates of nothing are data.
    has_data = not all(tensor.is_coordinate for tensor in reply.tensors)

    lengths: dict[str, int] = {}
    variables: dict[str, xr.Variable] = {}
    coords: dict[str, xr.Variable] = {}
    named: list[str] = []
    for tensor, is_label in zip(reply.tensors, reply.labels_of_others(), strict=True):
        if is_label:
            continue
        variable, own = _variables(tensor)
        renamed = {
            dim: f"{tensor.name}_{dim}"
            for dim, known, length in zip(
                variable.dims, tensor.dims, variable.shape, strict=True
            )
            if known is None and lengths.get(str(dim), length) != length
        }
        variable = variable._replace(dims=[renamed.get(dim, dim) for dim in variable.dims])
        for dim, length in zip(variable.dims, variable.shape, strict=True):
            if lengths.setdefault(str(dim), length) != length:
                raise _differ(str(dim))
        for name, coord in own.items():
            if not coords.setdefault(name, coord).equals(coord):  # type: ignore[no-untyped-call]
                raise _differ(name)
        if tensor.name in variables:
            raise usage(f"two items are named `{tensor.name}`", "give each a name of its own: `… AS a`")
        variables[tensor.name] = variable
        if tensor.is_coordinate and has_data:
            named.append(tensor.name)
    data = {k: v for k, v in variables.items() if k not in coords}
    attrs = json.loads(reply.tensors[0].dataset_attrs) if reply.tensors else {}
    return xr.Dataset(data, coords=coords, attrs=attrs).set_coords([k for k in named if k in data])


def _differ(dim: str) -> UserError:
    return usage(
        f"the items have different labels or lengths of `{dim}`, so they are not one dataset",
        "use `to_numpy()`, or select them one by one",
    )
