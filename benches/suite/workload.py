"""What a workload is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Gives the work to be timed; making it (inputs, compiling) is not timed.
Maker = Callable[[], Callable[[], Any]]


@dataclass(frozen=True)
class Limit:
    """What bounds a workload: bytes that it must at least move, or operations."""

    # `memory` (bytes read and written), `gemm float64`, `gemm float32` (operations), `decode …` (decoded bytes).
    kind: str
    read: float
    written: float = 0.0


@dataclass(frozen=True)
class Workload:
    """One kind of work, done by Tessera and by each peer that can do it."""

    name: str
    # Timed; its items are called `r`, or `r0`, `r1`, …, and are what `--check` compares with the peers' results.
    sql: str
    peers: dict[str, Maker]
    # Runs first, not timed.
    setup: str = ""
    limit: Limit | None = None
    # Bytes of inputs that are resident and of the result: what a process must hold.
    held: float = 0.0
    # Further arguments of `tessera`, and variables of its environment.
    args: tuple[str, ...] = ()
    env: Callable[[], dict[str, str]] = dict
    # Makes files that both sides read; it runs in the worker before both.
    prepare: Callable[[], None] | None = None
    # Done in the worker instead of `sql` by `tessera bench`: for what is reached over HTTP.
    ours: Maker | None = None
    # Peers that are shown, but are of another kind and so not compared with.
    beside: tuple[str, ...] = ()
    # Is Tessera with one thread a peer?
    alone: bool = False
    # The same over data that differ in how they are declared alone: Tessera itself is the peer, and `--check` wants the
    # same bits of both.
    twin: str = ""
    # Relative error that `--check` lets pass; None where there is nothing to compare (random cells, files).
    rtol: float | None = 1e-9
    # Statement whose result `--check` looks at, where that of `sql` is none.
    look: str | None = None


@dataclass(frozen=True)
class Context:
    """What families need to make their workloads."""

    scale: float
    # Where files for both sides lie; they are kept between runs.
    data: Path
    # The binary of Tessera.
    binary: Path

    def cells(self, n: float) -> int:
        """A number of cells, scaled."""
        return max(int(n * self.scale), 1000)

    def side(self, n: int, power: float = 2) -> int:
        """The length of a side of something with `power` dimensions, scaled."""
        return max(int(round(n * self.scale ** (1 / power))), 8)
