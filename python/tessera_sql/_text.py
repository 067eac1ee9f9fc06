"""Texts that several modules write."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def escaped(group: str) -> str:
    """The path of a group as it follows the `#` of a path or URL."""
    return group.replace("%", "%25").replace("#", "%23")


def readable(count: float) -> str:
    """A number of bytes for people: ``1.9 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
