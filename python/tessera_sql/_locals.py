"""Objects of the caller as relations: arrays, datasets, tables. Their memory is read where it is."""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays, _native
from ._errors import Error, UserError, usage
from ._relation import Relation
from ._text import escaped, literal, quoted

if TYPE_CHECKING:
    import xarray as xr

    from ._connection import Connection

_Array = tuple[str, list[str | None], str, Any, Any | None, str | None, bool]


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
    dims: str | Sequence[str | None] | None = None,
    coords: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> LocalTensor:
    """Names the dimensions of an array, and gives them labels, for statements that name the result.

    Args:
        array: a NumPy array, or what ``numpy.asarray`` makes one of without a copy. Masks are preserved.
        dims: a name for each axis, None for one without a name; for one axis its name alone will do.
        coords: labels by dimension: numbers, texts, datetimes or spans of time, one for each position.
        attrs: attributes of the array.

    Raises:
        UserError: names or labels do not fit the shape of the array.

    >>> import numpy as np
    >>> from tessera_sql import tensor
    >>> lat = tensor(np.zeros((3, 4)), dims=["lat", "lon"], coords={"lat": [50.0, 60.0, 70.0]})
    """
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    if isinstance(dims, str):
        dims = [dims]
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


def _of_array(name: str, array: np.ndarray[Any, Any]) -> _native.Local:
    return _of_tensor(name, LocalTensor(array, None, {}, {}))


def _of_tensor(name: str, local: LocalTensor) -> _native.Local:
    dims: list[str | None] = list(local.dims or [None] * local.array.ndim)
    try:
        array, attrs = _arrays.counted(local.array, local.attrs)
        dtype, memory, valid = _arrays.cells(array)
    except _arrays.Unsupported as e:
        raise _refused(name, e) from None
    labels: list[_arrays.Labels] = []
    for dim, values in local.coords.items():
        try:
            labels.append(_arrays.labels(dim, dim, values, {}))
        except _arrays.Unsupported as e:
            raise _refused(f"{name}.{dim}", e) from None
    arrays: list[_Array] = [(name, dims, dtype, memory, valid, _arrays.json_of(attrs), False)]
    return _native.dataset(name, arrays, labels, [], None)


def _refused(name: str, reason: _arrays.Unsupported) -> UserError:
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
    labels: list[_arrays.Labels] = []
    unreadable: list[tuple[str, list[tuple[str | None, int]], str, str | None]] = []
    _check_multi_index(name, dataset)
    coords = set(dataset.coords)
    for key, variable in dataset.variables.items():
        of = str(key)
        is_coord = key in coords
        is_lazy = not variable._in_memory and not (is_coord and variable.ndim == 1)
        try:
            if is_lazy and not reader.names(of):
                raise _arrays.Unsupported(
                    "it is not in memory, and the statement does not name it", f"load it: `{name}.load()`"
                )
            _check_computed(variable)
            is_shown = is_lazy and reader.describes and variable.dtype.kind not in "mOUTS"
            data = _placeholder(variable) if is_shown else _arrays.of_pandas(variable.data)
            # Texts have no form but labels.
            is_text = variable.ndim <= 1 and data.dtype.kind in "OUTS" and _arrays.is_text(data)
            if is_text or (is_coord and variable.ndim == 1):
                dim = str(variable.dims[0]) if variable.ndim else None
                labels.append(_arrays.labels(of, dim, np.atleast_1d(data), variable.attrs, is_coord))
                continue
            array, attrs = _arrays.counted(data, variable.attrs)
            dtype, memory, valid = _arrays.cells(array)
            dims: list[str | None] = [str(d) for d in variable.dims]
            arrays.append((of, dims, dtype, memory, valid, _arrays.json_of(attrs), is_coord))
        except _arrays.Unsupported as e:
            if is_coord and variable.dims == (key,):
                warn(f"the labels `{of}` of `{name}` are left out: {e.reason}; {e.hint}")
            sizes: list[tuple[str | None, int]] = [
                (str(d), int(n)) for d, n in zip(variable.dims, variable.shape, strict=True)
            ]
            unreadable.append((of, sizes, f"{e.reason} (`{of}` of `{name}`)", e.hint))
    return _native.dataset(name, arrays, labels, unreadable, _arrays.json_of(dataset.attrs))


def _placeholder(variable: xr.Variable) -> np.ndarray[Any, Any]:
    """An array that takes no memory, of the shape and dtype of a variable that nothing reads."""
    return np.broadcast_to(np.zeros((), variable.dtype), variable.shape)


def warn(text: str) -> None:
    """Warns at the line of the caller that runs the statement, or opens a dataset by xarray."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _package(frame) in (__package__, "xarray"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _check_multi_index(name: str, dataset: xr.Dataset) -> None:
    from xarray.indexes import PandasMultiIndex

    for index in dataset.xindexes.values():
        if isinstance(index, PandasMultiIndex):
            raise usage(
                f"`{index.dim}` of `{name}` is a MultiIndex, which is no label of one dimension",
                f"use `{name}.reset_index('{index.dim}')` or `{name}.unstack('{index.dim}')`",
            )


def _check_computed(variable: xr.Variable) -> None:
    """Fails for a variable whose cells Dask would compute."""
    if hasattr(variable._data, "__dask_graph__"):
        raise _arrays.Unsupported(
            "Dask would have to compute it first, in chunks of its own",
            "use `.compute()`, or open the files without `chunks=`: the engine reads stores chunk by chunk",
        )


def _of_dataarray(name: str, array: xr.DataArray, reader: Reader) -> _native.Local:
    if array.dims == (name,) and name in array.coords and array.variable.equals(array.coords[name].variable):  # type: ignore[no-untyped-call]
        # Labels of a dimension, `ds.lat`: a dataset that has them alone.
        return _of_dataset(name, array.coords.to_dataset(), reader)
    if name in array.coords:
        raise usage(f"`{name}` has a coordinate of its own name", "rename the variable, or use a Dataset")
    if array.name == name or array.variable._in_memory:
        return _of_dataset(name, array.to_dataset(name=name), reader)
    try:
        _check_computed(array.variable)
    except _arrays.Unsupported as e:
        raise _refused(name, e) from None
    # The statement does not have its own name: all of it is read.
    return _of_dataset(name, array.compute().to_dataset(name=name), reader)


#: Attributes that say that a variable is still as it is stored: CF decoding takes them away.
_PACKED = frozenset(["_FillValue", "missing_value", "scale_factor", "add_offset", "calendar"])


#: What reads columns that the text does not name: `*`, `NATURAL JOIN`, `PIVOT`, `SUMMARIZE`, queries that begin with
#: FROM, names for all columns (`FROM x t(a, b)`).
_READS_ALL = re.compile(
    r"""\*|\bnatural\b|\b(?:un)?pivot\b|\bsummarize\b
        |(?:^|\(|\b(?:as|all|distinct|name|union|except|intersect|explain|analyze|verbose|describe|desc)\b)\s*from\b
        |\bwith\b.*\)\s*from\b|\binsert\s+into\s.*?\sfrom\b
        |(?:\bfrom\s|\bjoin\s|,)\s*[\w".]+\s+(?:as\s+)?(?!(?:where|using|on|in)\b)["\w]+\s*\(""",
    re.VERBOSE | re.DOTALL,
)


class Reader:
    """What the engine says about stores, and the text of the statement."""

    def __init__(self, connection: Connection, kind: str, text: str) -> None:
        self._connection = connection
        self._kind = kind
        self._text = text.lower()

    @property
    def describes(self) -> bool:
        """Does the statement only describe a relation, `DESCRIBE x`?"""
        runs = re.search(r"\b(?:select|from|summarize|(?:un)?pivot)\b", self._text)
        return self._kind == "info" and runs is None

    def names(self, variable: str) -> bool:
        """May the statement read this variable? `COPY x TO …` and `FROM x` read all."""
        text = self._text
        if quoted(variable.lower())[1:-1] in text:
            return True
        return "select" not in text or _READS_ALL.search(text) is not None

    def named(self, columns: Sequence[str]) -> list[str]:
        """The columns that the statement may read, or the first one, which has the number of rows."""
        return [column for column in columns if self.names(column)] or list(columns[:1])

    def is_stored(self, relation: str) -> bool:
        """Does the catalog have a relation of this name?"""
        try:
            self._connection._describe(quoted(relation))
        except UserError:
            return False
        return True

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
            return f"{root}#{escaped(group.strip('/'))}" if group.strip("/") else str(root)
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
    if isinstance(value, Relation):
        return _of_relation(name, value)
    xarray = sys.modules.get("xarray")
    if xarray is not None:
        if isinstance(value, xarray.DataArray):
            return _of_dataarray(name, value, reader)
        if isinstance(value, xarray.Dataset):
            return _of_dataset(name, value, reader)
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        if isinstance(value, pandas.Series):
            value = value.to_frame(name if value.name is None else value.name)
        if isinstance(value, pandas.DataFrame):
            for column, dtype in value.dtypes.items():
                if isinstance(dtype, pandas.PeriodDtype):
                    raise usage(
                        f"the column `{column}` of `{name}` has periods, which are no moments",
                        f"use `{name}[{column!r}].dt.to_timestamp()`",
                    )
            return _of_table(name, _with_index(value))
    polars = sys.modules.get("polars")
    if polars is not None:
        if isinstance(value, polars.Series):
            value = value.to_frame(value.name or name)
        if isinstance(value, polars.LazyFrame):
            columns = reader.named(value.collect_schema().names())
            value = value.select(columns).collect()
        if isinstance(value, polars.DataFrame):
            # polars' form of columns of nothing but NULL is not Arrow's.
            empty = [key for key, dtype in value.schema.items() if dtype == polars.Null]
            return _of_table(name, value.cast(dict.fromkeys(empty, polars.Int32)) if empty else value)
    if _is(value, "pyarrow.dataset", "Dataset"):
        columns = reader.named(value.schema.names)
        return _of_table(name, value.scanner(columns=columns).to_reader())
    if _is(value, "pyarrow", "RecordBatchReader"):
        return _of_reader(name, value)
    if _is(value, "pyarrow", "Array") or _is(value, "pyarrow", "ChunkedArray"):
        value = sys.modules["pyarrow"].table({name: value})
    if hasattr(value, "__arrow_c_stream__"):
        return _of_table(name, value)
    if hasattr(value, "__dlpack__"):
        return _of_array(name, _of_other_library(name, value))
    return None


def _is(value: Any, module: str, kind: str) -> bool:
    """Is it an object of a class of a module that may not be imported?"""
    found = getattr(sys.modules.get(module), kind, None)
    return found is not None and isinstance(value, found)


def _is_spent(value: Any) -> bool:
    """Does it cost a computation, or the object's own rows, to make a relation of it?"""
    return (
        isinstance(value, Relation)
        or _is(value, "polars", "LazyFrame")
        or _is(value, "pyarrow.dataset", "Dataset")
        or _is(value, "pyarrow", "RecordBatchReader")
    )


def _with_index(frame: Any) -> Any:
    """A DataFrame of pandas without an index: levels that have a name are columns, the others are left out."""
    names = list(frame.index.names)
    dropped = [i for i, level in enumerate(names) if level is None or level in frame.columns]
    if dropped:
        frame = frame.reset_index(level=dropped, drop=True)
    return frame.reset_index() if len(dropped) < len(names) else frame


def _of_table(name: str, value: Any) -> _native.Local:
    try:
        return _native.table(value)
    except Error:
        raise
    except ImportError as e:
        raise usage(f"`{name}` needs pyarrow: {e}", "pip install 'tessera-sql[arrow]'") from None
    except (ValueError, TypeError, NotImplementedError) as e:
        reason = ": ".join(str(part) for part in e.args)
        hint = "a table has columns with different names, each of one type that Arrow has"
        raise usage(f"`{name}` is no table: {reason}", hint) from None


#: What readers gave, as long as they live: they give their rows once.
_read: weakref.WeakKeyDictionary[Any, _native.Local] = weakref.WeakKeyDictionary()
_read_lock = threading.Lock()


def _of_reader(name: str, reader: Any) -> _native.Local:
    """A reader of pyarrow, whose rows all statements see, though it gives them once."""
    with _read_lock:
        local = _read.get(reader)
        if local is None:
            local = _read[reader] = _of_table(name, reader)
        return local


def _after_fork() -> None:
    """Another thread may have held the lock when the process forked."""
    global _read_lock
    _read_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _of_other_library(name: str, value: Any) -> np.ndarray[Any, Any]:
    """An array of another library over its own memory: PyTorch, JAX, …."""
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise UserError(
            f"`{name}` cannot be read: {e}",
            code="unsupported",
            hint="arrays of other libraries are read from the memory of the CPU, without gradients, in dtypes of NumPy",
        ) from None


def _of_relation(name: str, relation: Relation) -> _native.Local:
    """A query of its own: it runs, unless it has run, and its tensors or rows are read where they are."""
    reply = relation._answer()
    if reply.kind != "tensors":
        return relation._table().relation()
    arrays: list[_Array] = []
    labels: dict[str, _arrays.Labels] = {}
    data: Any
    for tensor in reply.tensors:
        for dim, label in zip(tensor.dims, tensor.labels, strict=True):
            if dim is None or label is None:
                continue
            key, dtype, values, attrs = label
            if dtype != "str":
                values = np.frombuffer(values, np.float64 if dtype.startswith("float") else np.int64)
            known = labels.setdefault(key, (key, dim, dtype, values, attrs, True))
            if known[1:3] != (dim, dtype) or not np.array_equal(known[3], values):
                raise usage(
                    f"the items of `{name}` have different labels of `{dim}`",
                    f"select them one by one, or drop the labels: `values({tensor.name})`",
                )
    for tensor, is_label in zip(reply.tensors, reply.labels_of_others(), strict=True):
        if is_label or (tensor.name in labels and tensor.dims == [labels[tensor.name][1]]):
            continue
        data, valid = tensor.cells()
        dtype = "int64" if tensor.dtype.startswith("datetime64") else tensor.dtype
        cells = np.frombuffer(data, dtype=dtype).reshape(tensor.shape or 1)
        arrays.append(
            (tensor.name, tensor.dims, tensor.dtype, cells, valid, tensor.attrs, tensor.is_coordinate)
        )
    of_dataset = reply.tensors[0].dataset_attrs if reply.tensors else None
    return _native.dataset(name, arrays, list(labels.values()), [], of_dataset)


_VALUES = "values are parameters: `sql('SELECT ? AS x', [x])`"
_PATHS = "a path is a text of the SQL: `FROM 'data.zarr'`"
_ARRAYS = "use `tessera_sql.tensor(x)`, or `numpy.asarray(x)`"
_STORES = "name its file in the SQL, `FROM 'data.zarr'`, which is read chunk by chunk; or read it: `x[...]`"

#: What to do with objects that are no relations, by the first part of the module and the name of their class.
_WAYS_OUT = {
    "builtins.list": _ARRAYS,
    "builtins.tuple": _ARRAYS,
    "builtins.range": _ARRAYS,
    "builtins.memoryview": _ARRAYS,
    "builtins.dict": "use `pandas.DataFrame(x)` or `xarray.Dataset(x)`",
    "builtins.str": _PATHS,
    "builtins.int": _VALUES,
    "builtins.float": _VALUES,
    "builtins.bool": _VALUES,
    "datetime.date": _VALUES,
    "datetime.datetime": _VALUES,
    "decimal.Decimal": _VALUES,
    "pandas.Timestamp": _VALUES,
    "array.array": _ARRAYS,
    "dask.Array": "use `.compute()`, or name the files in the SQL",
    "dask.DataFrame": "use `.compute()`, or name the files in the SQL: `FROM 'data/*.parquet'`",
    "h5py.Dataset": _STORES,
    "netCDF4.Dataset": _STORES,
    "netCDF4.Variable": _STORES,
    "pathlib.PosixPath": _PATHS,
    "xarray.DataTree": "take the dataset of a group: `x['group'].to_dataset()`",
    "xarray.Variable": "use a DataArray: `xarray.DataArray(x)`",
    "zarr.Array": _STORES,
    "zarr.Group": _STORES,
}


def way_out(value: Any) -> str:
    """What to do with an object that is no relation."""
    kind = type(value)
    if isinstance(value, np.generic):
        return _VALUES
    known = _WAYS_OUT.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
    return known or (
        "relations are arrays of NumPy and of libraries with `__dlpack__`, xarray objects, tables with "
        "`__arrow_c_stream__`, other queries and `tessera_sql.tensor(…)`"
    )


#: Names that a statement sees, and whether they go before the catalog's.
Scope = tuple[Mapping[str, Any], bool]


def find(
    names: Iterable[str], scopes: Sequence[Scope], reader: Reader
) -> tuple[list[tuple[str, _native.Local, bool]], dict[str, str]]:
    """Relations of the scopes by name, the first scope first; and hints for names that are no relations there."""
    found: list[tuple[str, _native.Local, bool]] = []
    others: dict[str, str] = {}
    for name in names:
        for scope, goes_first in scopes:
            if name not in scope:
                continue
            value = scope[name]
            if not goes_first and _is_spent(value) and reader.is_stored(name):
                break
            try:
                local = relation(name, value, reader)
            except UserError:
                # What the catalog has, no variable hides.
                if goes_first or not reader.is_stored(name):
                    raise
                break
            if local is not None:
                found.append((name, local, goes_first))
            else:
                others[name] = f"the Python variable `{name}` is a {type(value).__name__}; {way_out(value)}"
            break
        else:
            in_other_case = (name.lower(), name.upper(), name.capitalize())
            near = next((n for n in in_other_case for scope, _ in scopes if n in scope), None)
            if near is not None:
                others[name] = f"did you mean the Python variable `{near}`?"
    return found, others


_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


def scopes_of(frame: FrameType) -> list[Scope]:
    """The names that a frame sees: its locals, then its globals. Names of the catalog go first.

    Comprehensions, generator expressions and bodies of classes see the locals of the function around them, too, if it
    runs them.
    """
    scopes: list[Scope] = [(frame.f_locals, False)]
    outer = frame.f_back
    while outer is not None and _is_part(frame, outer):
        scopes.append((outer.f_locals, False))
        frame, outer = outer, outer.f_back
    scopes.append((frame.f_globals, False))
    return scopes


def _is_part(frame: FrameType, outer: FrameType) -> bool:
    """Is the code of a frame a part of that of another one, and no function?"""
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_NEWLOCALS) and code.co_name not in _COMPREHENSIONS
    return not is_function and any(part is code for part in outer.f_code.co_consts)
