"""SQL for tensors.

>>> import numpy as np, tessera_sql as ts
>>> x = np.arange(6.0).reshape(2, 3)
>>> ts.sql("SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x").to_numpy()
array([[-1., -1., -1.],
       [ 1.,  1.,  1.]])
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from . import _accessor
from ._connection import Connection, Locals, Params, connect, default_connection
from ._errors import Cancelled, Error, InternalError, LimitError, RetryError, UserError
from ._locals import LocalTensor, tensor
from ._relation import Estimate, Relation

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "Cancelled",
    "Connection",
    "Error",
    "Estimate",
    "InternalError",
    "LimitError",
    "LocalTensor",
    "Relation",
    "RetryError",
    "UserError",
    "connect",
    "default_connection",
    "sql",
    "tensor",
]

try:
    __version__ = metadata.version("tessera-sql")
except metadata.PackageNotFoundError:
    __version__ = "0"


def sql(query: str, params: Params | None = None, *, locals: Locals = True) -> Any:
    """Runs SQL on the connection of this process; see :meth:`Connection.sql`."""
    connection = default_connection()
    return connection._sql(
        query, params, connection._scopes(locals, sys._getframe(1)), lazy=True
    )


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """``%load_ext tessera_sql``: the magics ``%tessera`` and ``%%tessera``."""
    from . import magic

    magic.load_ipython_extension(ipython)


_accessor.install()
