"""Forks: the threads of all connections wait while the process forks, and a child knows if they could not."""

from __future__ import annotations

import os
import weakref

from . import _native
from ._errors import usage

_engines: weakref.WeakSet[_native.Engine] = weakref.WeakSet()
_held: _native.Held | None = None
_is_broken = False


def check() -> None:
    """Raises an error in a child that cannot start threads: memory that they share was in use when it was forked."""
    if _is_broken:
        raise usage(
            "this process was forked while a statement ran in another thread of its parent",
            "fork between statements, or start processes with multiprocessing's 'spawn' or 'forkserver'",
        )


def add(engine: _native.Engine) -> None:
    _engines.add(engine)


def _before() -> None:
    global _held
    _held = _native.hold(list(_engines))


def _after_in_parent() -> None:
    global _held
    if _held is not None:
        _held.release()
        _held = None


def _after_in_child() -> None:
    global _held, _is_broken
    _is_broken = _is_broken or _held is None or not _held.is_whole
    _held = None
    _engines.clear()
    _native.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
