"""The xarray engine `tessera`: `xr.open_dataset(path_or_sql, engine="tessera")`.

```python
ds = xr.open_dataset("s3://bucket/era5.zarr", engine="tessera")
ds = xr.open_dataset("SELECT t2m - mean(t2m, 0) AS anomaly FROM 'era5.zarr'", engine="tessera", chunks={})
```
Opening a dataset reads its metadata and the labels of its dimensions. Each access to a variable runs one statement for the
cells that it touches, so only the chunks that hold them are read or computed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends import BackendEntrypoint
from xarray.core import indexing

from . import _native, _results, _spans
from ._lazy import ALIAS, Door, TesseraArray, door_of, dtype_of, plain, relation_of
from ._locals import warn
from ._text import escaped, literal, quoted

if TYPE_CHECKING:
    from ._connection import Connection

# Items of a statement that reads attributes.
_ITEMS_MAX = 100
# Groups that a tree may have.
_GROUPS_MAX = 10_000

_SQL = re.compile(
    r"""(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*   # blanks and comments
        (?:\(\s*)*
        (?:SELECT|WITH|FROM)(?=[\s('"\[/]|--|\Z)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Source:
    """A relation: the texts that follow FROM and DESCRIBE, the query of all its rows, and what was opened."""

    relation: str
    described: str
    query: str
    place: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of DESCRIBE. `note` is the text of the attributes, or why a variable cannot be read."""

    name: str
    kind: str
    dtype: str
    masked: bool
    dims: tuple[tuple[str, int], ...]
    chunks: tuple[int, ...]
    note: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(length for _, length in self.dims)

    @property
    def is_index(self) -> bool:
        """Is it the coordinate of the dimension of its own name?"""
        return self.kind == "coordinate" and self.names == (self.name,)

    @property
    def is_text(self) -> bool:
        """Are its values texts, which only rows have?"""
        return self.kind == "coordinate" and self.dtype == "text"


class TesseraBackendEntrypoint(BackendEntrypoint):
    """Opens what Tessera reads, and results of SQL, as lazy datasets."""

    description = "Open Zarr, NumPy, Parquet and results of SQL lazily, by Tessera"
    supports_groups = True

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        integer_masks: bool = False,
        connection: Connection | str | None = None,
        mask_and_scale: bool | None = None,
        decode_times: bool | None = None,
    ) -> xr.Dataset:
        """Opens a path, a URL, the name of a stored tensor or view, or a query.

        A text that begins with SELECT, WITH or FROM (after comments) is a query. A bare name is looked up in the catalog
        unless a file has this name. `group` is the path of a Zarr group.
        `connection` is a connection or the URL of a server; None is the default connection. Dask workers in other
        processes connect with the same settings; temporary tensors do not exist there, and relative paths in a query
        start at their working directory.

        Variables are lazy and have the chunks of the store or of the plan as `preferred_chunks`. Labels of dimensions and
        texts are read at once; texts are coordinates, without attributes. A query whose result is rows runs at once. A
        lazy query runs for each access: whatever it reduces is computed again.
        Masked cells are NaN or NaT, so integers that may be masked become floats, as in xarray's other engines, and
        booleans become objects. With `integer_masks` both keep their dtype, and the lazy coordinate `NAME_mask` is True
        where a cell of `NAME` is masked, as in `Relation.to_xarray`.

        Raises `tessera_sql.Error` if the source cannot be opened, `TypeError` if it is no text or path, and `ValueError`
        if its variables do not fit one dataset, or if `decode_cf`, `mask_and_scale` or `decode_times` is other than True:
        the engine decodes by itself.
        """
        _check_decoders(mask_and_scale, decode_times)
        door = door_of(connection)
        source = _source(filename_or_obj, group, door.connection)
        ds, groups = _opened(door, source, drop_variables, integer_masks)
        if groups and not ds.variables:
            raise ValueError(
                f"{source.relation} has no variables, only the groups {', '.join(groups)}: choose one, "
                f"group={groups[0]!r}, or open all of them with open_datatree"
            )
        return ds

    def open_groups_as_dict(  # type: ignore[override]
        self,
        filename_or_obj: str | os.PathLike[str],
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        integer_masks: bool = False,
        connection: Connection | str | None = None,
        mask_and_scale: bool | None = None,
        decode_times: bool | None = None,
    ) -> dict[str, xr.Dataset]:
        """Opens a path or URL and all groups in it, or in `group`, as datasets by their paths from there: `/`, `/a`, `/a/b`.

        Each is what `open_dataset` opens. A group that has no variables is an empty dataset without attributes.

        Raises the errors of `open_dataset`, and `ValueError` for more than 10000 groups, and for groups of a name.
        """
        _check_decoders(mask_and_scale, decode_times)
        door = door_of(connection)
        base = (group or "").strip("/")
        found: dict[str, xr.Dataset] = {}
        waiting = [""]
        for path in waiting:
            place = f"{base}/{path}" if base and path else base or path
            source = _source(filename_or_obj, place or None, door.connection)
            found[f"/{path}"], inner = _opened(door, source, drop_variables, integer_masks)
            waiting += [f"{path}/{name}" if path else name for name in inner]
            if inner and source.relation != literal(source.place):
                raise ValueError(f"{source.place!r} has the groups {', '.join(inner)}: open its path to read them")
            if len(waiting) > _GROUPS_MAX:
                raise ValueError(f"more than {_GROUPS_MAX} groups: choose one of them, group={waiting[1]!r}")
        return found

    def open_datatree(  # type: ignore[override]
        self, filename_or_obj: str | os.PathLike[str], **options: Any
    ) -> xr.DataTree:
        """Opens a path or URL as a tree of its groups; takes the options of `open_groups_as_dict`.

        Raises the errors of `open_groups_as_dict`, and `ValueError` if a group has other labels of a dimension than the
        group around it: `open_groups` opens these.
        """
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Returns False: the engine opens only what names it."""
        return False


def _check_decoders(mask_and_scale: bool | None, decode_times: bool | None) -> None:
    if mask_and_scale not in (None, True) or decode_times not in (None, True):
        raise ValueError(
            "engine='tessera' decodes CF by itself: select the stored numbers in a query, "
            "FROM read_zarr('url', decode_cf => false)"
        )


def is_query(text: str) -> bool:
    """Does `text` begin with SELECT, WITH or FROM, after blanks, comments and parentheses?"""
    return _SQL.match(text) is not None


def _source(
    filename_or_obj: object, group: str | None, connection: Connection
) -> _Source:
    if not isinstance(filename_or_obj, str | os.PathLike):
        raise TypeError(
            "engine='tessera' opens a path, a URL or a query, "
            f"not an object of type {type(filename_or_obj).__name__}"
        )
    text = os.fspath(filename_or_obj)
    if isinstance(filename_or_obj, str) and is_query(text):
        if group is not None:
            raise ValueError("`group` is for paths and URLs: name it in the query, FROM 'url#group'")
        _, statements = _native.parse(text)
        if len(statements) != 1 or statements[0][0] != "query":
            raise ValueError(f"one query is expected here, not {len(statements)} statements")
        query = statements[0][1]
        # The line break ends a comment at the end of the query.
        return _Source(f"({query}\n)", query, query, text)
    embedded = connection.target is None
    if isinstance(filename_or_obj, str) and group is None and _NAME.fullmatch(text):
        if not (embedded and os.path.exists(text)):
            return _of(quoted(text), text)
    if embedded and not _SCHEME.match(text):
        text = os.path.abspath(os.path.expanduser(text))
    inside = (group or "").strip("/")
    if inside:
        has_group = "#" in text and not (embedded and os.path.exists(text))
        text += f"{'/' if has_group else '#'}{escaped(inside)}"
    return _of(literal(text), text)


def _of(relation: str, place: str) -> _Source:
    return _Source(relation, relation, f"SELECT * FROM {relation}", place)


def _opened(
    door: Door, source: _Source, drop_variables: str | Iterable[str] | None, integer_masks: bool
) -> tuple[xr.Dataset, list[str]]:
    """A relation as a dataset, and the names of the groups in it."""
    dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
    entries = _describe(door.connection, source)
    groups = [e.name for e in entries if e.kind == "group"]
    entries = [e for e in entries if e.kind != "group" and e.name not in dropped]
    if entries and all(e.kind == "column" for e in entries):
        rows = relation_of(door.connection, source.query).to_xarray()
        ds = rows.to_dataset() if isinstance(rows, xr.DataArray) else rows
        ds = ds.drop_vars(dropped, errors="ignore")
    else:
        ds = _lazy_dataset(door, source, entries, integer_masks)
    ds.encoding["source"] = source.place
    return ds, groups


def _lazy_dataset(
    door: Door, source: _Source, entries: list[_Entry], integer_masks: bool
) -> xr.Dataset:
    for e in entries:
        if e.kind == "unreadable":
            warn(f"{e.name!r} is left out, because Tessera cannot read it: {e.note}")
    entries = _fitted([e for e in entries if e.kind != "unreadable"])
    coordinates = {e.name for e in entries if e.kind == "coordinate"}
    entries = [e for e in entries if e.kind != "result" or e.name not in coordinates]
    texts, entries = [e for e in entries if e.is_text], [e for e in entries if not e.is_text]
    attributes, of_dataset = _attributes(
        door.connection, source, [e for e in entries if not e.is_index]
    )
    variables: dict[str, xr.Variable] = {}
    coords = _labels(door.connection, source, [e for e in entries if e.is_index])
    coords |= {e.name: _texts(door.connection, source, e) for e in texts}
    for e in entries:
        if e.is_index:
            continue
        into = coords if e.kind in ("coordinate", "auxiliary") else variables
        attrs = attributes.get(e.name, {})
        spans = _spans.spans_of(dtype_of(e.dtype, False), attrs)
        if spans is not None:
            variable = _variable(door, source, e, spans.dtype, spans=spans)
            variable.attrs = {k: v for k, v in attrs.items() if k not in ("units", "dtype")}
            into[e.name] = variable
            continue
        keeps = integer_masks and e.masked and dtype_of(e.dtype, False).kind in "iub"
        variable = _variable(door, source, e, dtype_of(e.dtype, e.masked and not keeps))
        variable.attrs = attrs
        into[e.name] = variable
        if keeps:
            mask = _variable(door, source, e, np.dtype(bool), is_mask=True)
            mask.attrs = {"long_name": f"True where {e.name} is masked"}
            coords[f"{e.name}_mask"] = mask
    # The caller creates the indexes, unless it was asked not to.
    return xr.Dataset(variables, coords=xr.Coordinates(coords, indexes={}), attrs=of_dataset)


def _variable(
    door: Door,
    source: _Source,
    e: _Entry,
    dtype: np.dtype[Any],
    is_mask: bool = False,
    spans: _spans.Spans | None = None,
) -> xr.Variable:
    array = TesseraArray(door, source.relation, e.name, e.shape, dtype, is_mask, spans)
    encoding: dict[str, Any] = {}
    if e.chunks and len(e.chunks) == len(e.dims):
        encoding["preferred_chunks"] = dict(zip(e.names, e.chunks, strict=True))
    return xr.Variable(e.names, indexing.LazilyIndexedArray(array), None, encoding)


def _fitted(entries: list[_Entry]) -> list[_Entry]:
    """Renames dimensions without a name where their lengths differ, as `Relation.to_xarray` does.

    Raises `ValueError` unless each dimension has one length and each coordinate one set of labels.
    """
    lengths: dict[str, tuple[int, str]] = {}
    indexes: set[str] = set()
    fitted = []
    for e in entries:
        dims: list[tuple[str, int]] = []
        for axis, (dim, length) in enumerate(e.dims):
            known, first = lengths.get(dim, (length, e.name))
            name = dim
            if dim in dict(dims):
                name = f"{dim}_{axis}"
            elif known != length and dim == f"dim_{axis}":
                name = f"{e.name}_{dim}"
            elif known != length:
                raise ValueError(
                    f"the dimension {dim!r} has the length {known} in {first!r} and {length} in {e.name!r}: "
                    "leave one of them out with drop_variables=, or select one of them in a query"
                )
            lengths.setdefault(name, (length, e.name))
            dims.append((name, length))
        if e.is_index and e.name in indexes:
            raise ValueError(
                f"the variables have different labels along the dimension {e.name!r}: "
                "leave some of them out, or drop their labels with values(x)"
            )
        if e.is_index:
            indexes.add(e.name)
        fitted.append(replace(e, dims=tuple(dims)))
    return fitted


def _labels(
    connection: Connection, source: _Source, entries: list[_Entry]
) -> dict[str, xr.Variable]:
    """Reads the labels of dimensions by one statement."""
    variables = {}
    for e, tensor in _tensors(connection, source, [(e, _item(e)) for e in entries]):
        cells, attrs = _results.to_numpy(tensor), json.loads(tensor.attrs)
        spans = _spans.spans_of(cells.dtype, attrs)
        if spans is not None:
            mask = np.ma.getmaskarray(cells)
            values, attrs = _spans.decoded(e.name, np.ma.getdata(cells), mask, attrs)
            variables[e.name] = xr.Variable(e.names, values, attrs)
            continue
        dtype = dtype_of(str(cells.dtype), bool(np.ma.is_masked(cells)))
        variables[e.name] = xr.Variable(e.names, plain(cells, dtype), attrs)
    return variables


def _texts(connection: Connection, source: _Source, e: _Entry) -> xr.Variable:
    """Reads texts as rows; a missing one is NaN, as in xarray. Rows have no attributes."""
    count = int(np.prod(e.shape))
    rows: list[tuple[Any, ...]] = []
    if count:
        sql = f"SELECT {_item(e)} AS v FROM {source.relation} AS {ALIAS} LIMIT {count}"
        rows = relation_of(connection, sql).fetchall()
    if len(rows) != count:
        raise RuntimeError(f"{e.name!r} has {len(rows)} texts, not {count}")
    texts = [np.nan if text is None else text for (text,) in rows]
    values = np.array(texts, dtype=object if np.nan in texts else np.str_)
    return xr.Variable(e.names, values.reshape(e.shape))


def _attributes(
    connection: Connection, source: _Source, entries: list[_Entry]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Reads the attributes of variables, and of the dataset.

    They come with selections without cells (of one cell, if a variable has no dimension).
    """
    with_some = [e for e in entries if e.note]
    # Any selection has the attributes of the dataset.
    chosen = with_some or [e for e in entries if e.dims and e.kind == "variable"][:1]
    items = [(e, _item(e, ["0:0"] * len(e.dims))) for e in chosen]
    out: dict[str, dict[str, Any]] = {}
    of_dataset: dict[str, Any] = {}
    for start in range(0, len(items), _ITEMS_MAX):
        for e, tensor in _tensors(connection, source, items[start : start + _ITEMS_MAX]):
            out[e.name] = json.loads(tensor.attrs)
            of_dataset = json.loads(tensor.dataset_attrs)
    return out, of_dataset


def _item(e: _Entry, subscripts: list[str] | None = None) -> str:
    text = f"{ALIAS}.{quoted(e.name)}"
    return f"{text}[{', '.join(subscripts)}]" if subscripts else text


def _tensors(
    connection: Connection, source: _Source, items: list[tuple[_Entry, str]]
) -> list[tuple[_Entry, _native.Tensor]]:
    """Runs one statement for all items."""
    if not items:
        return []
    named = ", ".join(f"{sql} AS v{i}" for i, (_, sql) in enumerate(items))
    relation = relation_of(connection, f"SELECT {named} FROM {source.relation} AS {ALIAS}")
    return [(e, t) for (e, _), t in zip(items, relation._answer().tensors, strict=True)]


def _describe(connection: Connection, source: _Source) -> list[_Entry]:
    """Returns the rows of DESCRIBE. A query is planned, not run."""
    return [
        _Entry(
            column.name,
            column.kind,
            column.dtype.removesuffix(" masked"),
            column.dtype.endswith(" masked"),
            column.dims,
            () if column.kind == "coordinate" else column.chunks,
            column.attributes,
        )
        for column in connection._describe(source.described)
    ]
