"""Answers of the engine as NumPy arrays and xarray objects."""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _spans
from ._errors import Error, UserError, usage

if TYPE_CHECKING:
    import xarray as xr
    from xarray.indexes import PandasIndex

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


@functools.cache
def _keeps(dtype: np.dtype[Any]) -> bool:
    """Does xarray keep arrays of this dtype as they are? It looks at objects, and older ones make times nanoseconds."""
    import xarray as xr

    return dtype.kind != "O" and xr.Variable((), np.zeros((), dtype)).dtype == dtype


def _variable(dims: Iterable[str], array: Array, attrs: dict[str, Any]) -> xr.Variable:
    import xarray as xr

    return xr.Variable(tuple(dims), array, attrs, fastpath=_keeps(array.dtype))


class _Coords:
    """The coordinates of tensors that form one object of xarray, each made once, and the indexes of dimensions."""

    def __init__(self) -> None:
        self.variables: dict[Hashable, xr.Variable] = {}
        self.indexes: dict[Hashable, xr.Index] = {}
        self.masks: set[str] = set()
        self._labels: dict[str, tuple[str, str, bytes | list[str | None]]] = {}

    def variable(self, tensor: _native.Tensor, dims: list[str]) -> xr.Variable:
        """A tensor as a variable; its coordinates are added.

        Raises:
            UserError: it has other labels than a tensor before it.
        """
        for dim, label in zip(dims, tensor.labels, strict=True):
            if label is not None:
                self._add_labels(dim, label)
        (data, valid), shape = tensor.cells(), tensor.shape
        mask = None if valid is None else _mask(valid, shape)
        array = _array(tensor.dtype, data, shape)
        array, attrs = _spans.decoded(tensor.name, array, mask, json.loads(tensor.attrs))
        # Masked floats are NaN and masked times NaT already. Masked integers stay integers: their mask goes along.
        if mask is not None and array.dtype.kind not in "fmMO":
            about = {"long_name": f"True where {tensor.name} is masked"}
            name = f"{tensor.name}_mask"
            self.masks.add(name)
            self._add(name, _variable(dims, mask, about))
        return _variable(dims, array, attrs)

    def _add_labels(self, dim: str, label: tuple[str, str, Any, str]) -> None:
        name, dtype, values, _ = label
        given = (dim, dtype, values if isinstance(values, list) else bytes(values))
        if self._labels.get(name) == given:
            return
        self._labels[name] = given
        _, array, attrs = labels(label)
        self._add(name, _variable((dim,), *_spans.decoded(name, array, None, attrs)))

    def _add(self, name: str, variable: xr.Variable) -> None:
        known = self.variables.get(name)
        if known is not None:
            if not known.equals(variable):  # type: ignore[no-untyped-call]
                raise _differ(name)
        elif variable.dims == (name,):
            index = self.indexes[name] = _index(name, variable)
            self.variables.update(index.create_variables({name: variable}))
        else:
            self.variables[name] = variable


def _index(name: str, labels: xr.Variable) -> PandasIndex:
    import pandas as pd
    from xarray.indexes import PandasIndex

    values: Any = labels.data
    if values.dtype.kind in "biufM":
        # xarray copies an index without a name.
        values = pd.Index(values, name=name, copy=False)
    return PandasIndex(values, name, labels.dtype)


def to_dataarray(tensor: _native.Tensor) -> xr.DataArray:
    """A tensor with its dimensions, coordinates and attributes."""
    import xarray as xr

    coords = _Coords()
    variable = coords.variable(tensor, dim_names(tensor))
    # Without `fastpath` xarray copies the coordinates and makes their indexes again: 0.3 ms.
    return xr.DataArray(variable, coords.variables, name=tensor.name, indexes=coords.indexes, fastpath=True)


def to_dataset(reply: _native.Reply) -> xr.Dataset:
    """The tensors of an answer as a dataset.

    Items that are coordinates of their dataset are coordinates, and so are those that only repeat labels of others.
    """
    import xarray as xr

    # Coordinates of nothing are data.
    has_data = not all(tensor.is_coordinate for tensor in reply.tensors)

    lengths: dict[Hashable, int] = {}
    variables: dict[Hashable, xr.Variable] = {}
    coords = _Coords()
    named: list[str] = []
    for tensor, is_label in zip(reply.tensors, reply.labels_of_others(), strict=True):
        if is_label:
            continue
        dims = dim_names(tensor)
        for axis, (known, length) in enumerate(zip(tensor.dims, tensor.shape, strict=True)):
            if known is None and lengths.get(dims[axis], length) != length:
                dims[axis] = f"{tensor.name}_{dims[axis]}"
            if lengths.setdefault(dims[axis], length) != length:
                raise _differ(dims[axis])
        if tensor.name in variables:
            raise usage(f"two items are named `{tensor.name}`", "give each a name of its own: `… AS a`")
        variables[tensor.name] = coords.variable(tensor, dims)
        if tensor.is_coordinate and has_data:
            named.append(tensor.name)
    for name in coords.masks & variables.keys():
        raise usage(
            f"the item `{name}` and the coordinate that is True where `{name.removesuffix('_mask')}` is masked have one name",
            "give the item another one: `… AS a`",
        )
    data = {k: v for k, v in variables.items() if k not in coords.variables}
    named = [k for k in named if k in data]
    attrs = json.loads(reply.tensors[0].dataset_attrs) if reply.tensors else {}
    direct = getattr(xr.Dataset, "_construct_direct", None)
    if direct is None or data.keys() & lengths.keys():
        # xarray makes an index of a variable with the name of its dimension.
        made = xr.Coordinates(coords.variables, indexes=coords.indexes)
        return xr.Dataset(data, coords=made, attrs=attrs).set_coords(named)
    # The constructor would copy the coordinates and merge what has been compared: 0.3 ms.
    found: xr.Dataset = direct(
        {**data, **coords.variables}, {*coords.variables, *named}, attrs=attrs or None, indexes=coords.indexes
    )
    return found


def _differ(dim: str) -> UserError:
    return usage(
        f"the items have different labels or lengths of `{dim}`, so they are not one dataset",
        "use `to_numpy()`, or select them one by one",
    )
