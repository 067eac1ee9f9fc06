"""Exceptions. The class of an error says who has to act, its code what happened."""

from __future__ import annotations

import re


class Error(Exception):
    """An error of Tessera.

    Its text has the message, the line of SQL with the place underlined, and a hint where there is one.

    Attributes:
        code: a short, stable name, such as ``unknown_name`` or ``memory_exceeded``.
        hint: how to fix it, or None.
        position: line and column of the place in the SQL, counted from 1, or None.
        message: the text without SQL and hint.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "usage",
        hint: str | None = None,
        position: tuple[int, int] | None = None,
        text: str | None = None,
    ) -> None:
        if text is None:
            text = message if hint is None else f"{message}\nhint: {hint}"
        super().__init__(text)
        self.message = message
        self.code = code
        self.hint = hint
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (type(self), self.message, self.code, self.hint, self.position, str(self)))


class UserError(Error, ValueError):
    """The statement, its parameters or its data are wrong."""


class LimitError(Error):
    """A limit was reached: memory, disk, time, a queue."""


class RetryError(Error, ConnectionError):
    """A server or a store cannot be reached now; later it may."""


class InternalError(Error):
    """A fault of Tessera."""


class Cancelled(Error):
    """The statement was cancelled: by ``close()``, or by another client. Ctrl-C is ``KeyboardInterrupt``."""


_CLASSES: dict[str, type[Error]] = {
    "user": UserError,
    "limit": LimitError,
    "retry": RetryError,
    "internal": InternalError,
}


def make(
    code: str,
    kind: str,
    message: str,
    hint: str | None,
    position: tuple[int, int] | None,
    text: str,
) -> Error:
    """The exception of an error of the engine; ``text`` is what a terminal shows."""
    made = Cancelled if code == "cancelled" else _CLASSES.get(kind, Error)
    text = text.removeprefix(f"error[{code}]: ").rstrip("\n")
    return made(message, code=code, hint=hint, position=position, text=text)


def usage(message: str, hint: str | None = None) -> UserError:
    return UserError(message, code="usage", hint=hint)


def in_query(error: Error) -> Error:
    """An error of a statement that has the query from its second line on, with the place in the query."""
    line, column = error.position or (0, 0)
    if line < 2:
        return error
    number = str(line - 1).ljust(len(str(line)))
    text = re.sub(rf"^{line} \| ", f"{number} | ", str(error), count=1, flags=re.MULTILINE)
    return type(error)(
        error.message, code=error.code, hint=error.hint, position=(line - 1, column), text=text
    )


def _again(
    kind: type[Error],
    message: str,
    code: str,
    hint: str | None,
    position: tuple[int, int] | None,
    text: str,
) -> Error:
    return kind(message, code=code, hint=hint, position=position, text=text)
