"""Variables of xarray whose cells are read by statements when they are accessed, and the connections for these."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from . import _spans
from ._text import quoted

if TYPE_CHECKING:
    from ._connection import Connection
    from ._relation import Relation

# Longer lists of positions are read as the slice that covers them.
_LIST_MAX = 4096
# The relation's name in generated statements.
ALIAS = "__source"


class Door:
    """The connection of lazy arrays. Another process, also a fork, connects with the same settings.

    `settings` None stands for the default connection of the process.
    """

    __slots__ = ("_connection", "_process", "settings")

    def __init__(self, connection: Connection, settings: dict[str, Any] | None) -> None:
        self._connection = connection
        self._process = os.getpid()
        self.settings = settings

    @property
    def connection(self) -> Connection:
        """The connection of this process."""
        if self._process != os.getpid():
            self._connection = _reopen(self.settings)._connection
            self._process = os.getpid()
        return self._connection

    def __copy__(self) -> Door:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Door:
        return self

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any] | None]]:
        return _reopen, (self.settings,)


_doors: dict[str, Door] = {}
_doors_lock = threading.Lock()


def _after_fork() -> None:
    """Another thread may have held the lock when the process forked."""
    global _doors_lock
    _doors_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _reopen(settings: dict[str, Any] | None) -> Door:
    """Returns this process's connection with these settings; connects at the first call."""
    from . import _connection

    if settings is None:
        return Door(_connection.default_connection(), None)
    key = repr((os.getpid(), sorted(settings.items())))
    with _doors_lock:
        door = _doors.get(key)
        if door is None or door.connection.closed:
            door = _doors[key] = Door(_connection.opened(**settings), settings)
        return door


def door_of(connection: Connection | str | None) -> Door:
    """The door of a connection, of a server by its URL, or of the default connection."""
    from . import _connection

    if connection is None:
        return Door(_connection.default_connection(), None)
    if isinstance(connection, str):
        return _reopen({"target": connection})
    return Door(connection, connection.settings)


def relation_of(connection: Connection, sql: str) -> Relation:
    """Returns the relation of one query, which reads no variable of a caller."""
    found: Relation | list[Relation | None] | None = connection.sql(sql, locals=False)
    if found is None or isinstance(found, list):
        raise ValueError(f"one query is expected here, not {sql!r}")
    return found


class TesseraArray(BackendArray):
    """A variable of shape `shape` and dtype `dtype` that reads the cells of each access by a statement."""

    __slots__ = ("_door", "_is_mask", "_name", "_relation", "_spans", "dtype", "shape")

    def __init__(
        self,
        door: Door,
        relation: str,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        is_mask: bool = False,
        spans: _spans.Spans | None = None,
    ) -> None:
        self._door = door
        self._relation = relation
        self._name = name
        self._is_mask = is_mask
        self._spans = spans
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Returns the cells of `key`.

        Raises `tessera_sql.Error` if they cannot be read or computed.
        """
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Returns the cells of `key`, read in a thread of the event loop's pool."""
        return await asyncio.to_thread(self.__getitem__, key)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray[Any, np.dtype[Any]]:
        """Reads the cells of an outer key: whole numbers, slices with positive steps, ascending 1-d arrays."""
        axes = [_axis(k, n) for k, n in zip(key, self.shape, strict=True)]
        shape = tuple(a.length for a in axes if a.length is not None)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        item = f"{ALIAS}.{quoted(self._name)}"
        if axes:
            item += f"[{', '.join(a.sql for a in axes)}]"
        sql = f"SELECT {item} AS v FROM {self._relation} AS {ALIAS}"
        cells = relation_of(self._door.connection, sql).to_numpy()
        if self._spans is not None:
            out = self._spans.decode(self._name, np.ma.getdata(cells), np.ma.getmaskarray(cells))
        else:
            out = np.ma.getmaskarray(cells) if self._is_mask else plain(cells, self.dtype)
        kept = [a for a in axes if a.length is not None]
        for number, axis in enumerate(kept):
            if axis.rest is not None:
                out = out.take(axis.rest, axis=number)
        if out.shape != shape:
            raise RuntimeError(f"{sql} returned the shape {out.shape}, not {shape}")
        return out


@dataclass(frozen=True, slots=True)
class _Axis:
    """A key along one axis: its SQL, the length of the result (None: no axis), and positions to take from it."""

    sql: str
    length: int | None
    rest: np.ndarray[Any, np.dtype[np.intp]] | None = None


def _axis(key: Any, size: int) -> _Axis:
    if isinstance(key, slice):
        positions = range(*key.indices(size))
        return _Axis(_slice_sql(positions, size), len(positions))
    if not isinstance(key, np.ndarray):
        return _Axis(str(int(key)), None)
    if key.size == 0:
        return _Axis("0:0", 0)
    first, last = int(key[0]), int(key[-1])
    steps = np.diff(key)
    step = int(steps[0]) if steps.size else 1
    if step > 0 and bool((steps == step).all()):
        return _Axis(_slice_sql(range(first, last + 1, step), size), key.size)
    if key.size <= _LIST_MAX:
        return _Axis(f"[{', '.join(map(str, key.tolist()))}]", key.size)
    return _Axis(_slice_sql(range(first, last + 1), size), key.size, key - first)


def _slice_sql(positions: range, size: int) -> str:
    if positions == range(size):
        return ":"
    if not positions:
        return "0:0"
    text = f"{positions[0]}:{positions[-1] + 1}"
    return text if positions.step == 1 or len(positions) == 1 else f"{text}:{positions.step}"


def plain(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns cells as an array of `dtype` without a mask.

    Masked cells are NaN, NaT, or None among objects; among integers they have whatever value is stored.
    """
    mask = np.ma.getmask(values)
    out = np.asarray(np.ma.getdata(values)).astype(dtype, copy=False)
    if mask is np.ma.nomask or dtype.kind in "iub":
        return out
    out = out.copy()
    out[mask] = {"M": np.datetime64("NaT"), "O": None}.get(dtype.kind, np.nan)
    return out


def dtype_of(text: str, masked: bool) -> np.dtype[Any]:
    """Returns the dtype in xarray of a dtype of DESCRIBE; `masked` asks for room for missing cells.

    As when xarray decodes `_FillValue`, integers then become floats and booleans objects. Times of calendars that NumPy
    lacks are cftime objects.
    """
    try:
        dtype = np.dtype(text)
    except TypeError:
        return np.dtype(object)
    if masked and dtype.kind in "iu":
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    return np.dtype(object) if masked and dtype.kind == "b" else dtype
