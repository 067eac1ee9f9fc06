"""Connections: a session of this process, or a client of a server."""

from __future__ import annotations

import decimal
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _fork, _locals, _native
from ._errors import Error, UserError, usage
from ._progress import Progress, wanted
from ._relation import Column, Relation, column

#: Values of parameters: a list for ``?`` and ``$1``, a mapping for ``$name``.
Params = Sequence[Any] | Mapping[str, Any]
#: True looks names up in the caller's frame, a mapping in it alone, False nowhere.
Locals = bool | Mapping[str, Any]

#: Texts up to this length are not parsed again while they are among the last that ran.
_REMEMBERED_CHARS = 16_384
_LEVELS = {"ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
_log = logging.getLogger("tessera")


def _plain(value: Any) -> Any:
    """A parameter as JSON has it. Moments that are none (NaT) are NULL."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic):
        if value.dtype.kind == "M":
            return None if np.isnat(value) else str(value)
        if value.dtype.kind == "m":
            raise usage(
                "a parameter is a timedelta64",
                "give its number in the unit of the labels: `x / np.timedelta64(1, 'h')` for hours",
            )
        value = value.item()
    if isinstance(value, decimal.Decimal):
        number = float(value)
        if decimal.Decimal(repr(number)) != value:
            raise usage(f"the parameter {value} is no float64", f"write it into the SQL: '{value}'::decimal(38, 20)")
        value = number
    if isinstance(value, float) and not np.isfinite(value):
        raise usage(f"a parameter is {value}", "write it into the SQL: 'NaN'::double")
    if hasattr(value, "isoformat"):
        return None if value != value else value.isoformat()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise usage(
        f"a parameter is a {type(value).__name__}",
        "parameters are numbers, texts, datetimes, True, False and None; name arrays in the SQL instead",
    )


def _params(params: Params | None) -> str | None:
    if params is None:
        return None
    if isinstance(params, Mapping):
        return json.dumps({str(k): _plain(v) for k, v in params.items()})
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence):
        raise usage("parameters are a list, or a mapping of names")
    return json.dumps([_plain(v) for v in params])


_remembered = functools.lru_cache(maxsize=256)(_native.parse)


class Statement:
    """A statement that was parsed: its text, and the objects of the caller that it names.

    ``others`` has hints for names that are no relations of the caller.
    ``is_tensors`` is False if the result is rows whatever its relations are, and True if it is tensors unless one of them
    is rows.
    """

    __slots__ = ("is_tensors", "kind", "locals", "others", "text")

    def __init__(
        self,
        kind: str,
        text: str,
        locals: list[tuple[str, _native.Local, bool]],
        others: dict[str, str],
        is_tensors: bool = False,
    ) -> None:
        self.kind = kind
        self.text = text
        self.locals = locals
        self.others = others
        self.is_tensors = is_tensors


class Connection:
    """Runs SQL: in this process, or on a server. Threads may share it; ``close`` cancels what runs.

    Made by :func:`tessera_sql.connect`.
    """

    def __init__(
        self, engine: _native.Engine, settings: dict[str, Any], *, locals: bool, progress: bool | None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._locals = locals
        self._progress = progress

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of :func:`connect` that open the same connection again, in another process, too."""
        return dict(self._settings)

    @property
    def target(self) -> str | None:
        """The URL of the server; None for a session of this process."""
        target = self._settings.get("target")
        return None if target is None else str(target)

    def sql(
        self, query: str, params: Params | None = None, *, locals: Locals | None = None
    ) -> Any:
        """A query as a lazy :class:`Relation`; nothing runs until its cells are needed.

        Statements that change something run at once and give None, ``SHOW``, ``DESCRIBE`` and ``EXPLAIN`` give their
        answer. Several statements give a list; unless all are queries, they run at once, in order.

        Args:
            query: SQL. A name that the catalog lacks is looked up in the caller's variables: NumPy arrays, xarray
                objects, ``tensor(…)``, tables of pandas, polars, pyarrow. Their memory is read in place when the
                statement runs.
            params: a list for ``?`` and ``$1``, a mapping for ``$name``.
            locals: a mapping of names to objects, in place of the caller's variables and before the catalog's names;
                False for none.

        Raises:
            Error: with code, hint and the place in the SQL.
        """
        return self._sql(query, params, self._scopes(locals, sys._getframe(1)), lazy=True)

    def execute(
        self, query: str, params: Params | None = None, *, locals: Locals | None = None
    ) -> Any:
        """As :meth:`sql`, but queries run at once, too."""
        return self._sql(query, params, self._scopes(locals, sys._getframe(1)), lazy=False)

    def _scopes(self, locals: Locals | None, frame: Any) -> list[_locals.Scope]:
        if locals is None:
            locals = self._locals
        if isinstance(locals, Mapping):
            return [(locals, True)]
        return _locals.scopes_of(frame) if locals else []

    def _sql(
        self,
        query: str,
        params: Params | None,
        scopes: list[_locals.Scope],
        *,
        lazy: bool,
    ) -> Any:
        statements = self._parse(query, params, scopes)
        if not lazy or any(s.kind != "query" for s in statements):
            results: list[Relation | None] = []
            for statement in statements:
                relation = Relation(self, statement).run()
                results.append(None if relation._is_done else relation)
        else:
            results = [Relation(self, statement) for statement in statements]
        return results[0] if len(results) == 1 else results

    def _parse(
        self, query: str, params: Params | None, scopes: list[_locals.Scope]
    ) -> list[Statement]:
        if not isinstance(query, str):
            raise TypeError(f"SQL is a str, not {type(query).__name__}")
        if self.closed:
            raise usage("the connection is closed")
        parse = _remembered if len(query) <= _REMEMBERED_CHARS else _native.parse
        _, parsed = parse(query, _params(params))
        statements = []
        for kind, text, names, is_tensors in parsed:
            found, others = _locals.find(names, scopes, _locals.Reader(self, kind, text)) if names else ([], {})
            statements.append(Statement(kind, text, found, others, is_tensors))
        return statements

    def _run(
        self, statement: Statement, text: str | None = None, *, tensors_only: bool = False
    ) -> _native.Reply:
        """Runs a statement, or another text with its objects, and returns the answer.

        With ``tensors_only`` a session of this process answers rows as tensors, whose dimensions are their keys and labels.
        """
        shown: Progress | None = None
        is_new = True

        def watch(progress: dict[str, Any]) -> None:
            nonlocal shown, is_new
            _tell_log()
            if is_new:
                # Most statements are over before.
                shown, is_new = Progress() if wanted(self._progress) else None, False
            if shown is not None:
                shown(progress)

        try:
            replies = self._engine.run(text or statement.text, statement.locals, watch, tensors_only)
        except UserError as e:
            raise _explained(e, statement) from None
        finally:
            if shown is not None:
                shown.close()
            _tell_log()
        return replies[-1]

    def _describe(self, what: str) -> list[Column]:
        """What DESCRIBE says of a quoted URL, a name or a query."""
        rows = self._run(Statement("info", f"DESCRIBE {what}", [], {})).rows
        return [] if rows is None else [column(row) for row in rows.tuples()]

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._engine.closed

    def close(self) -> None:
        """Cancels what runs and ends the session and its threads. Relations that ran keep their results."""
        self._engine.close()
        _tell_log()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tessera_sql.Connection{' (closed)' if self.closed else ''}>"


def _explained(error: UserError, statement: Statement) -> Error:
    """Says which variable has the name that nothing has, but is no relation, or differs from it in case alone."""
    if error.code != "unknown_name":
        return error
    for name, hint in statement.others.items():
        if f"`{name}`" in error.message:
            text = f"{str(error).partition(chr(10) + 'hint:')[0]}\nhint: {hint}"
            return UserError(
                error.message, code=error.code, hint=hint, position=error.position, text=text
            )
    return error


def _tell_log() -> None:
    """Passes events of the engine to ``logging``: the logger is `tessera`, and one below for each crate."""
    for level, target, text in _native.take_log():
        _log.getChild(target.removeprefix("tessera_").replace("::", ".")).log(
            _LEVELS.get(level, 10), "%s", text
        )


def connect(
    target: str | None = None,
    *,
    warehouse: str | os.PathLike[str] | None = None,
    memory_limit: str | int | None = None,
    threads: int | None = None,
    config: str | os.PathLike[str] | None = None,
    token: str | None = None,
    locals: bool = True,
    progress: bool | None = None,
    **settings: Any,
) -> Connection:
    """Opens a connection.

    Args:
        target: None for a session of this process; the URL of a server, ``http://127.0.0.1:8080``, or those of several
            servers of one warehouse, separated by commas.
        warehouse: directory or URL of stored tensors; ``./tessera-data`` by default.
        memory_limit: bytes, or a text such as ``"4GiB"`` or ``"50%"``; 75 % of the machine's by default.
        threads: threads that compute; one for each core by default.
        config: a TOML file of settings.
        token: authentication token of the server.
        locals: look up names of queries in the caller's variables?
        progress: show the progress of statements of more than a second? By default on terminals and in notebooks.
        settings: any other setting of ``tessera config``, with ``_`` for ``-``.

    Raises:
        Error: a setting is wrong, the server does not respond, or the process was forked while a statement ran in
            another thread of its parent.
    """
    given = {"warehouse": warehouse, "memory_limit": memory_limit, "threads": threads, **settings}
    try:
        return opened(target, config=config, token=token, locals=locals, progress=progress, **given)
    finally:
        _tell_log()


def opened(
    target: str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    token: str | None = None,
    locals: bool = True,
    progress: bool | None = None,
    **given: Any,
) -> Connection:
    """As :func:`connect`, but its events wait for the next statement: a caller may hold a lock that a handler of
    ``logging`` waits for."""
    texts = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for key, value in given.items()
        if value is not None
    }
    file = None if config is None else os.fspath(config)
    _choose_log(texts.pop("log", None))
    _fork.check()
    if target is None:
        if token is not None:
            raise usage("a token is for a server", "give its URL: connect('http://…', token=…)")
        engine = _native.Engine.open(texts, file)
    else:
        if not all(url.strip().startswith(("http://", "https://")) for url in target.split(",")):
            raise usage(
                f"`{target}` is no URL of a server",
                "a server is connect('http://127.0.0.1:8080'), a directory of tensors connect(warehouse='…')",
            )
        engine = _native.Engine.connect(target, token, texts, file)
    _fork.add(engine)
    again = {"target": target, "config": file, "token": token, "locals": locals, "progress": progress, **texts}
    again = {key: value for key, value in again.items() if value is not None}
    return Connection(engine, again, locals=locals, progress=progress)


_log_level: str | None = None


def _choose_log(level: str | None) -> None:
    """Sets the level of the events of all connections: a later one that names none leaves it."""
    global _log_level
    if level is None:
        if _log_level is not None:
            return
        level = os.environ.get("TESSERA_LOG", "warn")
    try:
        _native.log_level(level)
    except ValueError as e:
        raise usage(str(e), "levels are error, warn, info, debug, trace, and `tessera_exec=debug`") from None
    _log_level = level


_lock = threading.Lock()
_default: Connection | None = None


def default_connection() -> Connection:
    """The connection of :func:`tessera_sql.sql`: a session of this process, opened when it is first used."""
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = opened()
        return _default


def _after_fork() -> None:
    """A child of a fork has none of the threads of its parent: it opens a session of its own."""
    global _default, _lock
    _lock = threading.Lock()
    _default = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
