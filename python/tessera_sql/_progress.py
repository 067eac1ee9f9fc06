"""The progress of a statement: one line on stderr, or one cell of a notebook that is updated."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Any

from ._text import readable

#: Shorter statements show nothing.
AFTER_S = 1.0


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def line(progress: dict[str, Any], width: int) -> str:
    """``46 %  1203 of 2560 operands  3.0 GiB read  0:12 left``, cut to ``width`` characters."""
    parts = []
    if progress["fraction"] is None:
        parts.append("planning")
    else:
        parts.append(f"{progress['fraction']:4.0%}")
        parts.append(f"{progress['operands_done']} of {progress['operands_total']} operands")
    if progress["bytes_read"]:
        parts.append(f"{readable(progress['bytes_read'])} read")
    if progress["bytes_spilled"]:
        parts.append(f"{readable(progress['bytes_spilled'])} spilled")
    if progress["eta_s"] is not None:
        parts.append(f"{_clock(progress['eta_s'])} left")
    else:
        parts.append(_clock(progress["elapsed_s"]))
    if progress["statements"] > 1:
        parts.append(f"statement {progress['statement']} of {progress['statements']}")
    return "  ".join(parts)[:width]


class Progress:
    """Shows the progress while it is called, until ``close``. Failures of the output are not the statement's."""

    def __init__(self) -> None:
        self._notebook = _notebook()
        self._handle: Any = None
        self._shown = False

    def __call__(self, progress: dict[str, Any]) -> None:
        if progress["elapsed_s"] < AFTER_S:
            return
        self._shown = True
        with contextlib.suppress(OSError, ValueError):
            if self._notebook:
                self._update(line(progress, 120))
            else:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r{line(progress, width)}\x1b[K")
                sys.stderr.flush()

    def _update(self, text: str) -> None:
        from IPython.display import HTML, display

        content = HTML(f"<pre>{text}</pre>")  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(content, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content)

    def close(self) -> None:
        if not self._shown:
            return
        with contextlib.suppress(OSError, ValueError):
            if self._notebook:
                self._update("")
            else:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _notebook() -> bool:
    """True in a notebook, which has cells in place of a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def wanted(setting: bool | None) -> bool:
    """Is the progress shown? By default in notebooks and on terminals."""
    if setting is not None:
        return setting
    if _notebook():
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
