"""Objects of the caller as relations: arrays, datasets, tables. Their memory is read where it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._errors import UserError, usage
from ._text import literal, quoted

if TYPE_CHECKING:
    import xarray as xr

    from ._connection import Connection

#: Calendars of CF, and the names of the engine's dtypes for them.
_CALENDARS = {
    "standard": "gregorian",
    "gregorian": "gregorian",
    "proleptic_gregorian": None,
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
    "julian": "julian",
}

#: dtypes that the engine reads where they are.
_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
)

_Array = tuple[str, list[str | None], str, Any, Any | None, str | None, bool]
_Labels = tuple[str, str, str, Any, str | None]


class LocalTensor:
    """An array with names of its dimensions and labels, made by :func:`tensor`."""

    def __init__(
        self,
        array: Any,
        dims: Sequence[str | None] | None,
        coords: Mapping[str, Any],
        attrs: Mapping[str, Any],
    ) -> None:
        self.array = array
        self.dims = dims
        self.coords = coords
        self.attrs = attrs

    def __repr__(self) -> str:
        dims = self.dims or [None] * self.array.ndim
        axes = ", ".join(f"{d or '?'}: {n}" for d, n in zip(dims, self.array.shape, strict=True))
        return f"<tessera_sql.tensor {self.array.dtype} [{axes}]>"


def tensor(
    array: Any,
    dims: Sequence[str | None] | None = None,
    coords: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> LocalTensor:
    """Names the dimensions of an array, and gives them labels, for statements that name the result.

    Args:
        array: a NumPy array, or what ``numpy.asarray`` makes one of without a copy. Masks are preserved.
        dims: a name for each axis, None for one without a name.
        coords: labels by dimension: numbers, texts or datetimes, one for each position.
        attrs: attributes of the array.

    >>> lat = tensor(np.zeros((3, 4)), dims=["lat", "lon"], coords={"lat": [50.0, 60.0, 70.0]})
    """
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    if dims is not None and len(dims) != array.ndim:
        raise usage(f"{len(dims)} names for {array.ndim} dimensions")
    named = [d for d in dims or [] if d is not None]
    if len(set(named)) != len(named):
        raise usage(f"two dimensions have the same name: {', '.join(named)}")
    for dim, values in (coords or {}).items():
        if dim not in named:
            raise usage(f"`{dim}` is no dimension", f"dimensions are {', '.join(named) or '(none)'}")
        length = array.shape[list(dims or []).index(dim)]
        if len(values) != length:
            raise usage(f"`{dim}` has {len(values)} labels for {length} positions")
    return LocalTensor(array, dims, coords or {}, attrs or {})


class Unsupported(Exception):
    """An array that the engine does not read: the reason, and a hint."""

    def __init__(self, reason: str, hint: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def _cells(array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any], Any | None]:
    """The dtype, memory that the buffer protocol can describe, and the validity of an array."""
    valid = None
    if isinstance(array, np.ma.MaskedArray):
        mask = np.ma.getmask(array)
        array = np.asarray(np.ma.getdata(array))
        if mask is not np.ma.nomask and mask.any():
            # A mask is read in row-major order.
            array = np.ascontiguousarray(array)
            valid = np.ascontiguousarray(~mask).view(np.uint8)
    kind = array.dtype.kind
    if kind == "M":
        dtype = "datetime64[us]"
        if np.datetime_data(array.dtype)[0] == "generic":
            raise Unsupported("datetimes without a unit", "use `x.astype('datetime64[us]')`")
        array = array.astype("datetime64[us]", copy=False)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        array = array.view(np.int64)
    elif kind == "m":
        raise Unsupported("timedelta64", "divide it: `x / np.timedelta64(1, 's')` is seconds")
    elif kind == "c":
        raise Unsupported("complex numbers", "use `x.real` and `x.imag`")
    elif array.dtype == np.float16:
        dtype, array = "float32", array.astype(np.float32)
    else:
        array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        if kind == "b" and array.size and array.view(np.uint8).max() > 1:
            # Truth values of other memory; the engine counts on 0 and 1.
            array = array.view(np.uint8) != 0
        dtype = array.dtype.name
        if dtype not in _DTYPES:
            raise Unsupported(f"dtype {array.dtype}", "convert it with `x.astype('float64')`")
    if array.ndim == 0:
        array = array.reshape(1)
    elif not array.flags.aligned or any(s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array)
    return dtype, array, valid


def _plain(value: Any) -> Any:
    """A value of an attribute as JSON has it; raises TypeError if it has no form there."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value)


def _attrs(attrs: Mapping[Any, Any]) -> str | None:
    if not attrs:
        return None
    return json.dumps({str(k): _plain(v) for k, v in attrs.items()}, allow_nan=False, default=str)


def _json(attrs: Mapping[Any, Any]) -> str | None:
    try:
        return _attrs(attrs)
    except ValueError:
        # JSON has no NaN.
        return _attrs({k: v for k, v in attrs.items() if not _has_nan(v)})


def _has_nan(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind == "f" and not bool(np.isfinite(array).all())


def _labels(name: str, dim: str, values: Any, attrs: Mapping[Any, Any]) -> _Labels:
    """Labels for the engine: numbers of 8 bytes, or texts."""
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "biu":
        return name, dim, array.dtype.name, array.astype(np.int64), _json(attrs)
    if kind == "f":
        dtype = "float32" if array.dtype.itemsize <= 4 else "float64"
        return name, dim, dtype, array.astype(np.float64), _json(attrs)
    if kind == "M":
        moments = array.astype("datetime64[us]").view(np.int64)
        return name, dim, "datetime64[us]", np.ascontiguousarray(moments), _json(attrs)
    if _is_text(array):
        texts = [v if isinstance(v, str) else None for v in array.tolist()]
        return name, dim, "str", texts, _json(attrs)
    dated = _dates(array)
    if dated is not None:
        dtype, moments = dated
        return name, dim, dtype, moments, _json(attrs)
    raise Unsupported(f"labels of dtype {array.dtype}", f"drop them: `x.drop_vars('{name}')`")


def _is_text(array: np.ndarray[Any, Any]) -> bool:
    """Is it an array of texts, of which some may be missing (None or NaN)?"""
    kind = array.dtype.kind
    if kind != "O":
        return kind in "UT"
    is_missing = [v is None or (isinstance(v, float) and v != v) for v in array.flat]
    known = [v for v, missing in zip(array.flat, is_missing, strict=True) if not missing]
    return bool(known or not array.size) and all(isinstance(v, str) for v in known)


def _dates(array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]] | None:
    """cftime's dates as a dtype and microseconds; None if they are something else."""
    cftime = sys.modules.get("cftime")
    if cftime is None or array.dtype.kind != "O" or not array.size:
        return None
    first = array.flat[0]
    if not isinstance(first, cftime.datetime):
        return None
    calendar = _CALENDARS.get(first.calendar)
    dtype = "datetime64[us]" if calendar is None else f"datetime64[us, {calendar}]"
    moments = cftime.date2num(
        array, "microseconds since 1970-01-01", calendar=first.calendar, has_year_zero=first.has_year_zero
    )
    return dtype, np.ascontiguousarray(moments, dtype=np.int64)


def _of_array(name: str, array: np.ndarray[Any, Any]) -> _native.Local:
    return _of_tensor(name, LocalTensor(array, None, {}, {}))


def _of_tensor(name: str, local: LocalTensor) -> _native.Local:
    dims: list[str | None] = list(local.dims or [None] * local.array.ndim)
    try:
        dtype, memory, valid = _cells(local.array)
        labels = [_labels(dim, dim, values, {}) for dim, values in local.coords.items()]
    except Unsupported as e:
        raise _refused(name, e) from None
    arrays: list[_Array] = [(name, dims, dtype, memory, valid, _json(local.attrs), False)]
    return _native.dataset(name, arrays, labels, [], None)


def _refused(name: str, reason: Unsupported) -> UserError:
    return UserError(
        f"`{name}` cannot be read: {reason.reason}", code="unsupported", hint=reason.hint
    )


def _of_dataset(name: str, dataset: xr.Dataset, reader: Reader) -> _native.Local:
    """A dataset of xarray. One that only stands for a Zarr store is read there; of another lazy one, the variables that
    the statement names are loaded."""
    url = _store_of(dataset, reader)
    if url is not None:
        return _native.stored(url)
    arrays: list[_Array] = []
    labels: list[_Labels] = []
    unreadable: list[tuple[str, list[tuple[str | None, int]], str, str | None]] = []
    for key, variable in dataset.variables.items():
        of = str(key)
        is_coord = key in dataset.coords
        if not variable._in_memory and not (is_coord and variable.ndim == 1) and not reader.names(of):
            continue
        _check_multi_index(name, dataset, key)
        try:
            _check_computed(variable)
            # Texts have no form but labels.
            if variable.ndim == 1 and (is_coord or (variable.dtype.kind in "OUT" and _is_text(variable.values))):
                labels.append(_labels(of, str(variable.dims[0]), variable.values, variable.attrs))
                continue
            dtype, memory, valid = _cells(np.asanyarray(variable.data))
            dims: list[str | None] = [str(d) for d in variable.dims]
            arrays.append((of, dims, dtype, memory, valid, _json(variable.attrs), is_coord))
        except Unsupported as e:
            sizes: list[tuple[str | None, int]] = [
                (str(d), int(n)) for d, n in zip(variable.dims, variable.shape, strict=True)
            ]
            reason = f"`{of}` of `{name}` cannot be read: {e.reason}"
            unreadable.append((of, sizes, reason, e.hint))
    return _native.dataset(name, arrays, labels, unreadable, _json(dataset.attrs))


def _check_multi_index(name: str, dataset: xr.Dataset, key: Any) -> None:
    import pandas as pd

    if key in dataset.indexes and isinstance(dataset.indexes[key], pd.MultiIndex):
        raise usage(
            f"`{key}` of `{name}` is a MultiIndex, which is no label of one dimension",
            f"use `{name}.reset_index('{key}')` or `{name}.unstack('{key}')`",
        )


def _check_computed(variable: xr.Variable) -> None:
    """Fails for a variable whose cells Dask would compute."""
    if hasattr(variable._data, "__dask_graph__"):
        raise Unsupported(
            "Dask would have to compute it first, in chunks of its own",
            "use `.compute()`, or open the files without `chunks=`: the engine reads stores chunk by chunk",
        )


def _of_dataarray(name: str, array: xr.DataArray, reader: Reader) -> _native.Local:
    if name in array.coords:
        raise usage(f"`{name}` has a coordinate of its own name", "rename the variable, or use a Dataset")
    if array.name == name or array.variable._in_memory:
        return _of_dataset(name, array.to_dataset(name=name), reader)
    try:
        _check_computed(array.variable)
    except Unsupported as e:
        raise _refused(name, e) from None
    # The statement does not have its own name: all of it is read.
    return _of_dataset(name, array.compute().to_dataset(name=name), reader)


#: Attributes that say that a variable is still as it is stored: CF decoding takes them away.
_PACKED = frozenset(["_FillValue", "missing_value", "scale_factor", "add_offset", "calendar"])


class Reader:
    """What the engine says about stores, and the text of the statement."""

    def __init__(self, connection: Connection, text: str) -> None:
        self._connection = connection
        self._text = text

    def names(self, variable: str) -> bool:
        """May the statement read this variable?"""
        text = self._text.lower()
        return "*" in text or variable.lower() in text

    def shows(self, dataset: xr.Dataset, url: str) -> bool:
        """True if the store has exactly the variables and labels of the dataset."""
        if self._connection.target is not None:
            return False
        try:
            stored = {c.name: c for c in self._connection._describe(literal(url))}
            if set(stored) != {str(k) for k in dataset.variables}:
                return False
            for key, variable in dataset.variables.items():
                column = stored[str(key)]
                dtype = column.dtype.removesuffix(" masked")
                dims = tuple(zip(map(str, variable.dims), variable.shape, strict=True))
                if column.dims != dims or _PACKED & set(variable.attrs):
                    return False
                if variable.dtype.kind not in "MO" and variable.dtype.name != dtype:
                    return False
            coords = [str(k) for k, v in dataset.coords.items() if v.variable._in_memory and v.ndim == 1]
            for key in coords:
                statement = f"SELECT {quoted(key)} FROM {literal(url)}"
                labels = self._connection.sql(statement, locals=False).to_numpy()
                if not np.array_equal(labels, dataset[key].values):
                    return False
        except UserError:
            # The engine does not read this store: xarray does.
            return False
        return True


def _store_of(dataset: xr.Dataset, reader: Reader) -> str | None:
    """The Zarr store that a dataset only stands for; None if it has become something else."""
    lazy = {str(k): v for k, v in dataset.variables.items() if not v._in_memory}
    if not lazy or any(v.variable._in_memory for v in dataset.data_vars.values()):
        return None
    urls = {_url_of(key, variable) for key, variable in lazy.items()}
    if len(urls) != 1:
        return None
    (url,) = urls
    return url if url is not None and reader.shows(dataset, url) else None


def _url_of(name: str, variable: xr.Variable) -> str | None:
    """The URL of the group of a local Zarr store that has this variable as it is; None if an index is pending, or if it
    comes from elsewhere."""
    data: Any = variable._data
    for _ in range(10):
        key = getattr(data, "key", None)
        if key is not None and any(k != slice(None) for k in key.tuple):
            return None
        if type(data).__name__ == "ZarrArrayWrapper":
            array = data._array
            group, _, own = f"/{array.path}".rpartition("/")
            root = getattr(array.store, "root", None)
            if root is None or own != name:
                return None
            return f"{root}#{group.strip('/')}" if group.strip("/") else str(root)
        data = getattr(data, "array", None)
    return None


def relation(name: str, value: Any, reader: Reader) -> _native.Local | None:
    """An object as a relation; None if it is of no kind that the engine reads.

    Raises:
        UserError: it is of such a kind, but has a dtype or an index that the engine does not read.
    """
    if isinstance(value, LocalTensor):
        return _of_tensor(name, value)
    if isinstance(value, np.ndarray):
        return _of_array(name, value)
    xarray = sys.modules.get("xarray")
    if xarray is not None:
        if isinstance(value, xarray.DataArray):
            return _of_dataarray(name, value, reader)
        if isinstance(value, xarray.Dataset):
            return _of_dataset(name, value, reader)
    for library in ("pandas", "polars"):
        module = sys.modules.get(library)
        if module is not None and isinstance(value, module.Series):
            return _of_table(name, value.to_frame(value.name or name))
    if hasattr(value, "__arrow_c_stream__"):
        return _of_table(name, value)
    return None


def _of_table(name: str, value: Any) -> _native.Local:
    try:
        return _native.table(value)
    except ImportError as e:
        raise usage(f"`{name}` needs pyarrow: {e}", "pip install 'tessera-sql[arrow]'") from None
    except ValueError as e:
        raise usage(f"`{name}` is no table: {e}", "a table has columns with names") from None


#: Names that a statement sees, and whether they go before the catalog's.
Scope = tuple[Mapping[str, Any], bool]


def find(
    names: Iterable[str], scopes: Sequence[Scope], reader: Reader
) -> tuple[list[tuple[str, _native.Local, bool]], dict[str, str]]:
    """Relations of the scopes by name, the first scope first; and for objects of other kinds, their types."""
    found: list[tuple[str, _native.Local, bool]] = []
    others: dict[str, str] = {}
    for name in names:
        for scope, goes_first in scopes:
            if name not in scope:
                continue
            local = relation(name, scope[name], reader)
            if local is not None:
                found.append((name, local, goes_first))
            else:
                others[name] = type(scope[name]).__name__
            break
    return found, others


_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}


def scopes_of(frame: FrameType | None) -> list[Scope]:
    """The names that a frame sees: its locals, then its globals. Names of the catalog go first.

    A comprehension sees the locals around it, too: before Python 3.12 it has a frame of its own.
    """
    scopes: list[Scope] = []
    while frame is not None:
        scopes.append((frame.f_locals, False))
        if frame.f_code.co_name not in _COMPREHENSIONS:
            scopes.append((frame.f_globals, False))
            break
        frame = frame.f_back
    return scopes
