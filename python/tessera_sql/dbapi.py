"""PEP 249 (DB-API 2.0) over Tessera.

```python
from tessera_sql import dbapi
with dbapi.connect(warehouse="data") as con, con.cursor() as cur:
    cur.execute("SELECT lat, avg(t2m) FROM 'era5.zarr' WHERE lat > ? GROUP BY lat", (50,))
    cur.fetchall()
```
A tensor result is rows in the long layout: the columns of its dimensions, then its values. Every statement takes effect at
once, so `commit` does nothing and `rollback` is not supported.
"""

from __future__ import annotations

import datetime
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import tessera_sql
from . import _connection, _results

if TYPE_CHECKING:
    from ._relation import Relation

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"

Parameters = Sequence[Any] | Mapping[str, Any]
Description = tuple[str, str, None, None, None, None, bool | None]
_T = TypeVar("_T")


class Warning(Exception):  # noqa: A001 (the name of PEP 249)
    """Base of warnings; Tessera raises none."""


class Error(tessera_sql.Error):
    """Base of the errors of this module, with the `code`, `hint` and `position` of the error behind it (`__cause__`)."""


class InterfaceError(Error):
    """The module was used wrongly: a closed cursor, a fetch without a result."""


class DatabaseError(Error):
    """A statement failed."""


class DataError(DatabaseError):
    """Values that the statement cannot process: division by zero, a label that does not exist."""


class OperationalError(DatabaseError):
    """Not the query's fault: a limit, a lost connection, a damaged file, a cancellation."""


class IntegrityError(DatabaseError):
    """Two rows with the same labels, or a label that is NULL."""


class InternalError(DatabaseError):
    """A fault in Tessera."""


class ProgrammingError(DatabaseError):
    """A wrong query: its syntax, an unknown name, wrong arguments or parameters."""


class NotSupportedError(DatabaseError):
    """Something that Tessera cannot do."""


# Codes of the class `user` that are not a wrong query. The other classes decide by themselves.
_CLASSES: dict[type[DatabaseError], str] = {
    NotSupportedError: "not_acceptable unsupported unsupported_dtype unsupported_encoding",
    IntegrityError: "duplicate_key null_key already_exists name_conflict",
    DataError: (
        "division_by_zero domain_error empty_reduction execution index_out_of_range integer_overflow invalid_label "
        "invalid_time label_not_found masked_input no_convergence not_aligned not_finite not_positive_definite "
        "out_of_range shape_mismatch singular_matrix"
    ),
    OperationalError: (
        "cancelled corrupt corrupt_chunk corrupt_file document_changed forbidden invalid_metadata no_space not_allowed "
        "not_found outcome_unknown permission_denied source_changed storage_error storage_timeout unauthorized "
        "unknown_session unreachable"
    ),
}
_CLASS_OF = {code: cls for cls, codes in _CLASSES.items() for code in codes.split()}


def _class_of(error: tessera_sql.Error) -> type[DatabaseError]:
    """Returns the class of PEP 249 for an error of Tessera."""
    if isinstance(error, tessera_sql.InternalError):
        return InternalError
    if isinstance(error, tessera_sql.LimitError | tessera_sql.RetryError | tessera_sql.Cancelled):
        return OperationalError
    return _CLASS_OF.get(error.code, ProgrammingError)


def _raise(error: tessera_sql.Error) -> NoReturn:
    raise _class_of(error)(
        error.message,
        code=error.code,
        hint=error.hint,
        position=error.position,
        text=str(error),
    ) from error


def _call(function: Callable[[], _T]) -> _T:
    try:
        return function()
    except tessera_sql.Error as error:
        _raise(error)


class _Type:
    """A type object of PEP 249: equal to the type codes of its kind, and not to those of lists."""

    def __init__(self, name: str, pattern: str) -> None:
        self._name = name
        self._pattern = re.compile(pattern, re.IGNORECASE)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self._pattern.match(other) is not None and not other.endswith("[]")
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


STRING = _Type("STRING", r"(large_?|)(utf8|string)|utf8view|string_?view|text")
BINARY = _Type("BINARY", r"(large_?|fixed_?size_?|)binary")
NUMBER = _Type("NUMBER", r"u?int\d|float\d|halffloat|half_float|double|decimal|bool")
DATETIME = _Type("DATETIME", r"timestamp|date|time|duration|interval")
ROWID = _Type("ROWID", r"(?!)")

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802 (the name of PEP 249)
    """Returns the local date of a number of seconds since 1970."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    """Returns the local time of day of a number of seconds since 1970."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    """Returns the local time of a number of seconds since 1970."""
    return Timestamp(*time.localtime(ticks)[:6])


def connect(target: str | None = None, **settings: Any) -> Connection:
    """Connects to the embedded engine (None) or to a server (`"http://host:8080"`).

    `settings` are those of `tessera_sql.connect`. Variables of the caller are not relations here.
    Raises `OperationalError` if there is no server.
    """
    settings.setdefault("locals", False)
    return Connection(_call(lambda: _connection.connect(target, **settings)))


class _Closing:
    """What a `with` statement closes."""

    def _open(self) -> tessera_sql.Connection:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Connection(_Closing):
    """A connection of PEP 249. Threads may share it."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, inner: tessera_sql.Connection) -> None:
        self._inner = inner

    def _open(self) -> tessera_sql.Connection:
        if self._inner.closed:
            raise InterfaceError("the connection is closed")
        return self._inner

    def cursor(self) -> Cursor:
        """Returns a new cursor. Raises `InterfaceError` if the connection is closed."""
        self._open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters | None = None) -> Cursor:
        """Runs `operation` in a new cursor and returns the cursor."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Does nothing: every statement takes effect at once. Raises `InterfaceError` if the connection is closed."""
        self._open()

    def rollback(self) -> None:
        """Raises `NotSupportedError`: there are no transactions."""
        self._open()
        raise NotSupportedError("Tessera has no transactions: every statement takes effect at once")

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
        _call(self._inner.close)


class _Table:
    """A result as rows. A text (EXPLAIN) has a row for each line, JSON one row."""

    def __init__(self, relation: Relation) -> None:
        answer = relation._answer()
        if answer.text is None:
            rows = relation._table()
            columns = rows.columns
            self.count = len(rows)
            self._pages = _results.Pages(rows.reader())
        else:
            columns = [("plan", "text")]
            lines = [answer.text] if answer.kind == "json" else answer.text.splitlines()
            self.count = len(lines)
            self._pages = _results.Pages(None, ((line,) for line in lines))
        self.taken = 0
        self.description: list[Description] = [
            (name, kind, None, None, None, None, None) for name, kind in columns
        ]

    def take(self, count: int | None) -> list[tuple[Any, ...]]:
        rows = self._pages.take(count)
        self.taken += len(rows)
        return rows


class Cursor(_Closing):
    """A cursor of PEP 249: runs statements and returns rows as tuples.

    `arraysize` is the number of rows of `fetchmany` without an argument. Threads may share a cursor, but each row goes to
    one of them.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._lock = threading.RLock()
        self._closed = False
        self._results: list[Relation] = []
        self._table: _Table | None = None

    def _open(self) -> tessera_sql.Connection:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        return self.connection._open()

    @property
    def description(self) -> list[Description] | None:
        """The columns of the result: name, type code, four times None, whether it has NULLs (None: unknown).

        None before a statement and after one without a result.
        """
        return None if self._table is None else self._table.description

    @property
    def rowcount(self) -> int:
        """The number of rows of the result; -1 without a result."""
        return -1 if self._table is None else self._table.count

    @property
    def rownumber(self) -> int | None:
        """The position of the next row in the result from 0; None without a result."""
        return None if self._table is None else self._table.taken

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Runs one statement, or several that are separated by `;` (see `nextset`), and returns the cursor.

        `parameters` is a sequence for `?`, or a mapping for `$name`.
        Raises the errors of PEP 249; their `__cause__` is the `tessera_sql.Error`.
        """
        with self._lock:
            inner = self._open()
            self._set([])
            found = _call(lambda: inner.execute(operation, parameters, locals=False))
            all_ = found if isinstance(found, list) else [found]
            self._set([r for r in all_ if r is not None])
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Runs a statement without a result once for each set of parameters.

        Raises `ProgrammingError` if the statement has a result.
        """
        with self._lock:
            self._open()
            self._set([])
            for parameters in seq_of_parameters:
                self.execute(operation, parameters)
                if self._results:
                    self._set([])
                    raise ProgrammingError("executemany() is for statements without a result: use execute()")
        return self

    def _set(self, results: list[Relation]) -> None:
        self._results = results
        self._table = None
        if results:
            self._table = _call(lambda: _Table(results[0]))

    def nextset(self) -> bool | None:
        """Goes to the result of the next statement of the script; None if there is none."""
        with self._lock:
            self._open()
            if len(self._results) < 2:
                self._set([])
                return None
            self._set(self._results[1:])
            return True

    def _fetch(self, count: int | None) -> list[tuple[Any, ...]]:
        with self._lock:
            self._open()
            table = self._table
            if table is None:
                raise InterfaceError("no result: call execute() with a query first")
            return _call(lambda: table.take(count))

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row, or None after the last. Raises `InterfaceError` without a result."""
        rows = self._fetch(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Returns at most `size` (default `arraysize`) further rows. Raises `InterfaceError` without a result."""
        count = self.arraysize if size is None else size
        if count < 0:
            raise ProgrammingError(f"fetchmany() takes a number of rows, not {count}")
        return self._fetch(count)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns all further rows. Raises `InterfaceError` without a result."""
        return self._fetch(None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as PEP 249 allows."""
        self._open()

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""
        self._open()

    def close(self) -> None:
        """Closes the cursor and drops its result. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._set([])
