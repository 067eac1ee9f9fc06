"""The accessor `tessera` of xarray's Dataset and DataArray.

```python
ds.tessera.sql("SELECT mean(t2m, 0) AS t2m FROM ds")        # a Dataset or DataArray
ds.tessera.relation("SELECT avg(t2m) FROM ds WHERE lat > 50")   # a lazy relation
```
`install` registers it when xarray is imported, and never imports xarray itself.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

    from ._connection import Connection
    from ._relation import Relation

_NAME = "tessera"


class TesseraAccessor:
    """Runs SQL on an xarray object.

    The object is the relation `ds` of the query, and also `this`. A DataArray has its own name in addition, as a relation
    and as the variable in it. The caller's variables are relations too.
    """

    __slots__ = ("_object",)

    def __init__(self, obj: xr.Dataset | xr.DataArray) -> None:
        self._object = obj

    def sql(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        connection: Connection | None = None,
    ) -> xr.Dataset | xr.DataArray | None:
        """Runs one statement and returns its result as xarray: one tensor as a DataArray, several as a Dataset.

        Rows are a Dataset. A statement without a result (CREATE TENSOR … AS SELECT … FROM ds) returns None.
        `params` are the values of `?` or `$name`. `connection` None is the default connection.
        Raises `tessera_sql.Error` if the statement fails, and `ValueError` if there are several.
        """
        relation = self._run(query, params, connection, sys._getframe(1))
        return None if relation is None else relation.to_xarray()

    def relation(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        connection: Connection | None = None,
    ) -> Relation:
        """Returns the lazy relation of one query, which runs when its cells are asked for.

        Raises `tessera_sql.Error` if the query cannot be read, and `ValueError` if there are several statements, or one
        without a result.
        """
        relation = self._run(query, params, connection, sys._getframe(1))
        if relation is None:
            raise ValueError("the statement has no result: run it with .sql()")
        return relation

    def _run(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        connection: Connection | None,
        frame: FrameType,
    ) -> Relation | None:
        from . import _connection, _locals

        con = connection if connection is not None else _connection.default_connection()
        scopes = [(self._names(), True), *_locals.scopes_of(frame)]
        found: Relation | list[Relation | None] | None
        found = con._sql(query, params, scopes, lazy=True)
        if isinstance(found, list):
            raise ValueError(f"one statement is expected here, not {len(found)}")
        return found

    def _names(self) -> dict[str, Any]:
        name = getattr(self._object, "name", None)
        if not isinstance(name, str) or name in self._object.coords:
            return {"ds": self._object, "this": self._object}
        # As a dataset, the array has its own name in the query, and that of the relation.
        array: Any = self._object
        dataset = array.to_dataset()
        return {"ds": dataset, "this": dataset, name: dataset}


def register() -> None:
    """Registers the accessor with xarray, which it imports. A second call changes nothing."""
    # xarray does not annotate these functions.
    xarray: Any = importlib.import_module("xarray")
    if getattr(xarray.Dataset, _NAME, None) is TesseraAccessor:
        return
    xarray.register_dataset_accessor(_NAME)(TesseraAccessor)
    xarray.register_dataarray_accessor(_NAME)(TesseraAccessor)


def install() -> None:
    """Registers the accessor now if xarray is imported, else as soon as it is."""
    if sys.modules.get("xarray") is not None:
        # If another thread is importing it, this waits for the end of that import.
        register()
    elif not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Waits for the import of xarray, and steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "xarray":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            # xarray is not installed yet: a later import may find it.
            sys.meta_path.insert(0, self)
            return spec
        spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    """Loads xarray by its own loader, then registers the accessor."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException:
            # The import failed: the next one is tried like this one.
            if self._finder not in sys.meta_path:
                sys.meta_path.insert(0, self._finder)
            raise
        register()
