"""Relations: queries that run when their cells are needed."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import _native, _results
from ._errors import Error, UserError, in_query, usage
from ._text import literal, quoted, readable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import xarray as xr

    from ._connection import Connection, Statement

_numbers = itertools.count()

#: Rows that a relation shows of itself.
_SHOWN_ROWS = 10
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Estimate:
    """What a query would cost, from its plan: nothing runs.

    Attributes:
        peak_bytes: the most memory in use at once.
        bytes_read: bytes read from storage.
        requests: requests to storage.
        bytes_spilled: bytes written to disk because memory is too small.
        result_bytes: bytes of the result.
        operands: tasks of the plan.
        seconds: time of the computation; reading is not in it.
    """

    peak_bytes: int
    bytes_read: int
    requests: int
    bytes_spilled: int
    result_bytes: int
    operands: int
    seconds: float


@dataclass(frozen=True)
class Column:
    """A tensor or a column, as DESCRIBE shows it.

    Attributes:
        name: its name.
        kind: ``result`` for a tensor of a query, ``column`` for a column of rows; of a store ``variable``,
            ``coordinate``, ….
        dtype: NumPy's name of the type, for rows that of `DESCRIBE`, as ``text`` or ``decimal(10, 2)``.
        dims: name and length of each dimension; empty for a column.
        chunks: length of a chunk along each dimension; empty for labels.
        attributes: the attributes as a text.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[tuple[str, int], ...]
    chunks: tuple[int, ...]
    attributes: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor's cells; 0 for a column."""
        if self.kind == "column":
            return 0
        base = self.dtype.removesuffix(" masked").partition("[")[0]
        size = 1 if base == "bool" else np.dtype(base).itemsize
        for _, length in self.dims:
            size *= length
        return size


class Relation:
    """A query. It runs when its cells are needed, once, and keeps its result.

    Its tensors have the names of its items. Arrays that it returns are its result, not copies: copy them before you
    change them if you use the relation again.
    """

    def __init__(self, connection: Connection, statement: Statement) -> None:
        self._connection = connection
        self._statement = statement
        self._lock = threading.Lock()
        self._reply: _native.Reply | None = None
        self._described: list[Column] | None = None
        self._pages: _results.Pages | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a relation belongs to its connection: pickle its result, such as `relation.to_xarray()`")

    @property
    def sql_text(self) -> str:
        """The text of the statement, with its parameters."""
        return self._statement.text

    # --- Running ---

    def run(self) -> Relation:
        """Runs the query, unless it has run."""
        self._answer()
        return self

    def _answer(self) -> _native.Reply:
        with self._lock:
            if self._reply is None:
                self._reply = self._connection._run(self._statement)
            return self._reply

    @property
    def _is_done(self) -> bool:
        return self._reply is not None and self._reply.kind == "done"

    def _ask(self, text: str) -> _native.Reply:
        """The answer to another text about the same objects of the caller."""
        return self._connection._run(self._statement, text)

    def _ask_about(self, before: str, after: str = "") -> _native.Reply:
        """The answer to a statement around the query. Places of errors are those in the query."""
        try:
            return self._ask(f"{before}\n{self.sql_text}\n{after}")
        except Error as e:
            raise in_query(e) from None

    # --- What it is, without running ---

    def _describe(self) -> list[Column]:
        """The columns or tensors of the result, from the plan."""
        if self._described is None:
            if self._statement.kind == "query":
                rows = self._ask_about("DESCRIBE (", ")").rows
                self._described = [column(row) for row in ([] if rows is None else rows.tuples())]
            else:
                rows = self._answer().rows
                columns = [] if rows is None else rows.columns
                self._described = [Column(name, "column", dtype, (), ()) for name, dtype in columns]
        return self._described

    @property
    def columns(self) -> list[str]:
        """Names of the items, without running the query."""
        return [column.name for column in self._describe()]

    @property
    def dtypes(self) -> list[str]:
        """Types of the items, without running the query."""
        return [column.dtype for column in self._describe()]

    @property
    def schema(self) -> list[tuple[str, str]]:
        """Names and Arrow's types of the columns of :meth:`fetchall`; runs the query."""
        return self._table().columns

    @property
    def row_count(self) -> int:
        """Number of rows of :meth:`fetchall`; runs the query."""
        return len(self._table())

    def explain(self, analyze: bool = False) -> str:
        """The plan; with ``analyze`` the query runs, and the plan has what it did."""
        words = "EXPLAIN ANALYZE" if analyze else "EXPLAIN"
        return self._ask_about(words).text or ""

    def estimate(self) -> Estimate:
        """What the query would cost, without running it.

        Raises:
            Error: ``unsupported`` if a part of it has to run before the rest can be planned, and for rows of tables.
        """
        plan = json.loads(self._ask_about("EXPLAIN (FORMAT json)").text or "{}")
        plans = list(plan.get("tensor_plans", {}).values()) or [plan]
        if any("expected" not in p for p in plans):
            of_rows = "logical" in plan
            raise Error(
                f"the cost {'of rows of tables ' if of_rows else ''}is known only once "
                f"{'they have' if of_rows else 'a part of the query has'} run",
                code="unsupported",
                hint="see `explain()` for the plan",
            )
        expected = [p["expected"] for p in plans]
        costs = [p["cost"] for p in plans]
        return Estimate(
            peak_bytes=max((e["peak_bytes"] for e in expected), default=0),
            bytes_read=sum(e["bytes_read"] for e in expected),
            requests=sum(e["requests"] for e in expected),
            bytes_spilled=sum(e["bytes_spilled"] for e in expected),
            result_bytes=sum(c["result_bytes"] for c in costs),
            operands=sum(c["operands"] for c in costs),
            seconds=sum(
                c["work_us"] / 1e6 / max(e["threads"], 1)
                for c, e in zip(costs, expected, strict=True)
            ),
        )

    def __repr__(self) -> str:
        if self._reply is not None and self._reply.rows is not None:
            return self._text_rows(self._reply.rows)
        try:
            columns = self._describe()
        except Error as e:
            return f"<tessera_sql.Relation>\n{e}"
        if not columns:
            text = None if self._reply is None else self._reply.text
            return "<tessera_sql.Relation>" if text is None else text
        state = "has run" if self._reply is not None else "has not run"
        lines = [f"<tessera_sql.Relation: {state}>"]
        width = max(len(column.name) for column in columns)
        for column in columns:
            line = f"  {column.name:<{width}}  {column.dtype}"
            if column.kind != "column":
                dims = ", ".join(f"{name}: {length}" for name, length in column.dims)
                line += f"  [{dims}]"
                if column.chunks:
                    line += f"  chunks {' × '.join(map(str, column.chunks))}"
                line += f"  {readable(column.nbytes)}"
            lines.append(line)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self._reply is not None and self._reply.rows is not None:
            return self._html_rows(self._reply.rows)
        try:
            columns = self._describe()
        except Error as e:
            return f"<pre>{html.escape(str(e))}</pre>"
        if not columns:
            return f"<pre>{html.escape(repr(self))}</pre>"
        cells = "".join(
            "<tr>"
            + "".join(
                f"<td style='text-align:left'>{html.escape(text)}</td>"
                for text in (
                    column.name,
                    column.dtype,
                    ", ".join(f"{n}: {length}" for n, length in column.dims),
                    " × ".join(map(str, column.chunks)),
                    "" if column.kind == "column" else readable(column.nbytes),
                )
            )
            + "</tr>"
            for column in columns
        )
        state = "has run" if self._reply is not None else "has not run"
        return (
            f"<div>tessera_sql.Relation: {state}</div><table><thead><tr><th>name</th><th>dtype</th><th>dims</th>"
            f"<th>chunks</th><th>bytes</th></tr></thead><tbody>{cells}</tbody></table>"
        )

    def _text_rows(self, rows: _native.Rows) -> str:
        """The first rows as columns of text; numbers are at the right."""
        shown = rows.reader().take(_SHOWN_ROWS)
        columns = [
            [name, kind, *(_short(row[i]) for row in shown)] for i, (name, kind) in enumerate(rows.columns)
        ]
        widths = [max(map(len, column)) for column in columns]
        numbers = [all(isinstance(row[i], (int, float, type(None))) for row in shown) for i in range(len(columns))]
        lines = [f"<tessera_sql.Relation: {len(rows)} row{'' if len(rows) == 1 else 's'}>"]
        for line in zip(*columns, strict=True):
            cells = zip(line, widths, numbers, strict=True)
            padded = [text.rjust(width) if is_number else text.ljust(width) for text, width, is_number in cells]
            lines.append("  " + "  ".join(padded).rstrip())
        if len(rows) > len(shown):
            lines.append(f"  … {len(rows) - len(shown)} more")
        return "\n".join(lines)

    def _html_rows(self, rows: _native.Rows) -> str:
        shown = rows.reader().take(2 * _SHOWN_ROWS)
        head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in rows.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row) + "</tr>" for row in shown
        )
        more = "" if len(rows) <= len(shown) else f"<div>{len(rows)} rows, {len(shown)} shown</div>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    # --- Results ---

    def to_numpy(self) -> Any:
        """The cells: an array for one item, a dict of arrays by name for several.

        An array is a masked array if cells of it are masked. Datetimes are ``datetime64[us]``, in other calendars
        objects of cftime. Rows give a dict of columns, one column an array.
        """
        reply = self._answer()
        if reply.kind == "tensors":
            arrays = {tensor.name: _results.to_numpy(tensor) for tensor in reply.tensors}
        elif reply.rows is not None:
            arrays = _results.columns_to_numpy(reply.rows)
        else:
            raise self._no_cells("arrays")
        return next(iter(arrays.values())) if len(arrays) == 1 else arrays

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The cells of one item for NumPy, which has no mask here: masked floats are NaN, masked datetimes NaT.

        Raises:
            UserError: there are several items, or masked integers or Booleans, unless ``dtype`` is one of floats.
            ValueError: ``copy`` is False, and the cells have another dtype or have to be filled.
        """
        array = self.to_numpy()
        if isinstance(array, dict):
            raise usage(
                f"the result has {len(array)} items: {', '.join(array)}",
                "select one, or use `to_numpy()` for all",
            )
        wanted = array.dtype if dtype is None else np.dtype(dtype)
        if isinstance(array, np.ma.MaskedArray) or array.dtype != wanted:
            if copy is False:
                raise ValueError(f"an array of {wanted} would be a copy of {array.dtype}")
            return _filled(array, wanted)
        return np.asarray(array.copy() if copy else array)

    def __len__(self) -> int:
        """Rows, or the length of the first axis of the first item."""
        rows = self._answer().rows
        if rows is not None:
            return len(rows)
        array = self.to_numpy()
        return len(next(iter(array.values())) if isinstance(array, dict) else array)

    def __bool__(self) -> bool:
        return True

    def to_xarray(self) -> xr.DataArray | xr.Dataset:
        """The result with its dimensions, coordinates and attributes: one item a DataArray, several a Dataset.

        Masked floats are NaN, masked datetimes NaT; masked integers keep their type, and a coordinate
        ``<name>_mask`` is True where they are masked. Rows of a query are a Dataset: keys of ``GROUP BY`` and labels
        of dimensions are its dimensions; rows without them are along ``row``.
        """
        _needs("xarray", "xarray")
        if self._statement.kind == "query" and self._is_rows():
            return self._rows_to_dataset()
        reply = self._answer()
        if reply.kind != "tensors":
            raise self._no_cells("arrays")
        if len(reply.tensors) == 1:
            return _results.to_dataarray(reply.tensors[0])
        return _results.to_dataset(reply)

    def _is_rows(self) -> bool:
        return not self._statement.is_tensors or self._answer().kind == "rows"

    def _rows_to_dataset(self) -> xr.Dataset:
        import xarray as xr

        try:
            # A server would send rows.
            is_here = self._connection.target is None
            reply = (
                self._connection._run(self._statement, tensors_only=True) if is_here else self._rows_on_server()
            )
        except Error as e:
            if e.code != "ambiguous_dims":
                raise
            columns = _results.columns_to_numpy(self._table())
            return xr.Dataset({k: ("row", v) for k, v in columns.items()})
        found = _results.to_dataset(reply)
        # Rows without keys, such as one of totals.
        is_plain = all(tensor.dims == [None] for tensor in reply.tensors)
        return found.rename({"dim_0": "row"}) if is_plain and "dim_0" in found.dims else found

    def _rows_on_server(self) -> _native.Reply:
        """The rows of a server's answer as tensors."""
        name = f"tessera_sql_{os.getpid()}_{next(_numbers)}"
        self._ask_about(f"CREATE TEMP TENSOR {name} AS")
        try:
            rows_of = self._ask(f"DESCRIBE {name}").rows
            kinds = {} if rows_of is None else {row[0]: row[1] for row in rows_of.tuples()}
            items = {key: key for key, kind in kinds.items() if kind == "variable"}
            if name in items:
                # The only column besides the keys has no name of its own.
                items = {name: next((c for c in self.columns if c not in kinds), name)}
            selected = ", ".join(f"{quoted(key)} AS {quoted(own)}" for key, own in items.items())
            return self._ask(f"SELECT {selected} FROM {name}")
        finally:
            self._ask(f"DROP TENSOR {name}")

    def _table(self) -> _native.Rows:
        table = self._answer().table()
        if table is None:
            raise self._no_cells("rows")
        return table

    def _no_cells(self, what: str) -> Error:
        kind = self._answer().kind
        if kind == "done":
            return usage(f"the statement has no result, and so no {what}")
        return usage(f"the answer is a text, and so no {what}", "use `str(relation)`")

    def __str__(self) -> str:
        if self._reply is not None and self._reply.text is not None:
            return self._reply.text
        return repr(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's stream of the result as rows: a tensor has a row for each cell, its dimensions first."""
        return self._table().__arrow_c_stream__(requested_schema)

    def arrow(self) -> pa.Table:
        """The result as a table of pyarrow: a tensor has a row for each cell, its dimensions first."""
        _needs("pyarrow", "arrow")
        import pyarrow as pa

        return pa.table(self)

    def df(self) -> pd.DataFrame:
        """The result as a DataFrame of pandas: a tensor has a row for each cell, its dimensions first."""
        _needs("pandas", "pandas")
        import pandas as pd

        table = self._table()
        columns = enumerate(zip(table.arrays(), table.zones, strict=True))
        # Two columns of a join may have one name.
        frame = pd.DataFrame(
            {i: _series(_results.column_to_numpy(c), zone) for i, ((_, c), zone) in columns}
        )
        return frame.set_axis([name for name, _ in table.columns], axis="columns")

    def pl(self) -> pl.DataFrame:
        """The result as a DataFrame of polars. Intervals are durations; one of months is an error."""
        _needs("polars", "polars")
        import polars as pl

        return pl.DataFrame(self._table().without_intervals())

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The cells of one item for other libraries, in the memory of the CPU, without a copy unless ``copy`` is True.

        Raises:
            BufferError: there are several items or masked cells, the dtype is one of datetimes, or another device is asked for.
        """
        array = self.to_numpy()
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            raise BufferError("DLPack has one array without masked cells")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the cells are in the memory of the CPU, not of device {tuple(dl_device)}")
        if copy:
            array = array.copy()
        if max_version is None or not _HAS_VERSIONS:
            return array.__dlpack__(stream=stream)
        return array.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that were not fetched yet, as tuples of Python's values; NULL and masked cells are None.

        A tensor has a row for each cell, its dimensions first.
        """
        return self._take(None)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next rows, at most ``size``."""
        if size < 0:
            raise usage(f"{size} rows", "`fetchmany` takes a number of rows")
        return self._take(size)

    def _take(self, size: int | None) -> list[tuple[Any, ...]]:
        if self._pages is None:
            pages = _results.Pages(self._table().reader())
            with self._lock:
                self._pages = self._pages or pages
        with self._lock:
            return self._pages.take(size)

    def to_zarr(
        self, store: str | os.PathLike[str], mode: str | None = None, *, append_dim: str | None = None
    ) -> None:
        """Writes the result to a Zarr store, chunk by chunk: it need not fit into memory.

        Args:
            store: a path or URL; on a server, one of the server's.
            mode: ``w-``, the default, fails if the store exists, ``w`` replaces it, ``a`` is for ``append_dim``.
            append_dim: append along this dimension to what is stored.

        Raises:
            UserError: the store exists, or does not fit what is appended.
        """
        if mode not in (None, "a") if append_dim is not None else mode not in (None, "w", "w-"):
            raise usage(f"mode `{mode}`", "modes are `w-` and `w`, and `a` with `append_dim`")
        url = literal(os.fspath(store))
        options = " OPTIONS (overwrite true)" if mode == "w" else ""
        if append_dim is not None:
            options = f" OPTIONS (append {literal(append_dim)})"
        try:
            self._ask_about("COPY (", f") TO {url} STORED AS ZARR{options}")
        except UserError as e:
            if e.code != "already_exists":
                raise
            hint = '`mode="w"` replaces it, `append_dim="time"` appends to it'
            raise UserError(e.message, code=e.code, hint=hint) from None

    def plot(self, *args: Any, **options: Any) -> Any:
        """Plots one item with xarray's ``plot``."""
        array = self.to_xarray()
        if not hasattr(array, "name"):
            raise usage("a dataset has several items", "select one: `SELECT a FROM …`")
        return array.plot(*args, **options)


#: NumPy takes a version of DLPack since 2.1.
_HAS_VERSIONS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


def _short(value: Any) -> str:
    text = "NULL" if value is None else " ".join(str(value).splitlines())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _filled(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of this dtype without a mask: missing cells are NaN, NaT or None."""
    mask = np.ma.getmask(array)
    cells = np.ma.getdata(array).astype(dtype)
    if mask is np.ma.nomask or not mask.any():
        return cells
    missing = {"f": np.nan, "c": np.nan, "M": np.datetime64("NaT"), "m": np.timedelta64("NaT"), "O": None}
    if dtype.kind not in missing:
        raise usage(
            f"cells are masked ({int(mask.sum())} of {mask.size}), and {dtype} has no missing value",
            "use `to_numpy()`, which is a masked array, or `numpy.asarray(relation, dtype=float)` with NaN",
        )
    cells[mask] = missing[dtype.kind]
    return cells


def _series(column: np.ndarray[Any, Any], zone: str | None) -> Any:
    """A column for pandas, of instants with their zone: NULL is pandas' own missing value."""
    import pandas as pd

    if zone is not None and column.dtype.kind == "M":
        moments = _filled(column, column.dtype)
        return pd.Series(moments).dt.tz_localize("UTC").dt.tz_convert(zone)
    if not isinstance(column, np.ma.MaskedArray):
        return column
    mask = np.ma.getmaskarray(column)
    values = np.asarray(np.ma.getdata(column))
    if values.dtype.kind in "iub":
        array = pd.arrays.BooleanArray if values.dtype.kind == "b" else pd.arrays.IntegerArray
        return array(values, mask)
    return _filled(column, values.dtype)


def column(row: Sequence[Any]) -> Column:
    name, kind, dtype, dims, chunks, attributes = row
    pairs = [part.rpartition("=") for part in _split(dims)]
    return Column(
        name,
        kind,
        dtype,
        tuple((dim, int(length)) for dim, _, length in pairs),
        tuple(int(n) for n in _split(chunks) if n.isdigit()) if kind != "coordinate" else (),
        attributes or "",
    )


def _split(text: str | None) -> list[str]:
    """``time=6, lat=83``: names may have commas, lengths end a part."""
    return re.findall(r"(?:^|, )(.*?=?\d+)(?=, |$)", text) if text else []


def _needs(module: str, extra: str) -> None:
    """Fails with the way out if an optional package is missing."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise Error(
            f"{module} is not installed",
            code="missing_package",
            hint=f"pip install {module}, or pip install 'tessera-sql[{extra}]'",
        )
