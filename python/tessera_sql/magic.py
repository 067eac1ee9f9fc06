"""The magics `%tessera` and `%%tessera` of IPython and Jupyter: `%load_ext tessera_sql`.

```
%tessera SELECT mean(x, 0) FROM x          one line; x is a variable of the notebook

%%tessera climate <<                       a cell; the result becomes the variable climate
SELECT lat, avg(t2m) AS t2m FROM era5 WHERE year(time) = $year GROUP BY lat
```
The notebook's variables are relations, and the values of `$name`. A statement runs at once and shows its result; with
`name <<` or `--out name` nothing is shown, and a query runs when its cells are asked for.
`%tessera --connect http://host:8080` sends this and all further statements to a server, `--connect default` to the default
connection; a name is a variable that holds a connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tessera_sql
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_OPTION = re.compile(r"\s*(?P<name>--?[A-Za-z]+)(?:\s*=\s*|\s+|$)(?P<value>'[^']*'|\"[^\"]*\"|\S+)?")
_ASSIGN = re.compile(r"\s*(?P<name>\w+)\s*(?:<<|=(?=\s*(?:$|SELECT\b|WITH\b)))\s*", re.IGNORECASE)
_OUT = ("--out", "-o")
# Text and comments, which hold no parameters; then a parameter.
_PARAMETER = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$\$.*?\$\$|\$(?P<name>[A-Za-z_]\w*)""",
    re.DOTALL,
)


def _parse(line: str) -> tuple[str | None, str | None, str]:
    """Splits a line into the URL or name of `--connect`, the name of the result, and SQL."""
    connect: str | None = None
    out: str | None = None
    rest = line
    while found := _OPTION.match(rest):
        name, value = found["name"], found["value"]
        if name != "--connect" and name not in _OUT:
            raise UsageError(f"unknown option {name}: options are --connect URL and --out NAME (-o NAME)")
        if value is None:
            raise UsageError(f"{name} needs a value")
        value = value.strip("'\"")
        if name == "--connect":
            connect = value
        else:
            out = value
        rest = rest[found.end() :]
    if found := _ASSIGN.match(rest):
        out = found["name"]
        rest = rest[found.end() :]
    if out is not None and not out.isidentifier():
        raise UsageError(f"`{out}` cannot be the name of a variable")
    return connect, out, rest.strip()


def _parameters(sql: str, variables: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the values of the `$name` in `sql`, or None if there is none. Raises `UsageError` for a missing variable."""
    names = {m["name"] for m in _PARAMETER.finditer(sql) if m["name"] is not None}
    missing = sorted(names - variables.keys())
    if missing:
        raise UsageError(f"${missing[0]} is a parameter, but the notebook has no variable `{missing[0]}`")
    return {name: variables[name] for name in names} or None


@magics_class
class TesseraMagics(Magics):
    """The magics of one shell, and the connection that they use (None: the default connection)."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._shell = shell
        self.connection: tessera_sql.Connection | None = None

    @no_var_expand
    @line_cell_magic
    def tessera(self, line: str, cell: str | None = None) -> Any:
        """Runs SQL on the notebook's variables.

        %tessera [--connect URL] [--out NAME | NAME <<] SELECT …
        %%tessera [--connect URL] [--out NAME | NAME <<]

        Returns the relation, which shows itself; None with a name, and for statements without a result; a list for several
        statements. Raises `tessera_sql.Error` if a statement fails.
        """
        connect, out, sql = _parse(line)
        if cell is not None:
            if sql:
                raise UsageError("write the SQL below the line of %%tessera")
            sql = cell.strip()
        if connect is not None:
            self._connect(connect)
        if not sql:
            if connect is None or out is not None:
                raise UsageError("there is no SQL: %tessera SELECT …")
            return None
        variables: dict[str, Any] = self._shell.user_ns
        con = self.connection if self.connection is not None else tessera_sql.default_connection()
        params = _parameters(sql, variables)
        found = con._sql(sql, params, [(variables, False)], lazy=out is not None)
        if out is None:
            return found
        variables[out] = found
        return None

    def _connect(self, target: str) -> None:
        """Chooses the connection: `default`, a variable that holds one, or the URL of a server."""
        known = self._shell.user_ns.get(target)
        if isinstance(known, tessera_sql.Connection):
            self.connection = known
        elif target == "default":
            self.connection = None
        elif "://" in target:
            self.connection = tessera_sql.connect(target)
        else:
            raise UsageError(f"`{target}` is neither a URL, nor a variable that holds a connection, nor `default`")


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Registers `%tessera` and `%%tessera` in the shell."""
    ipython.register_magics(TesseraMagics)
