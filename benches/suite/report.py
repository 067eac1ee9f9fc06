"""Rows of figures: printed, kept as JSON, written as a table."""

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .workload import Limit

OURS = "tessera"
# Bytes that a process may take beside inputs, result and the operands that run.
PROCESS = 200 * 2**20


@dataclass
class Side:
    """The seconds of one side, turn by turn."""

    turns: list[list[float]] = field(default_factory=list)
    rss: int = 0

    def median(self) -> float:
        """Of all runs."""
        return statistics.median([t for turn in self.turns for t in turn])


@dataclass
class Row:
    """The figures of one workload."""

    family: str
    name: str
    limit: Limit | None = None
    held: float = 0.0
    sides: dict[str, Side] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: str | None = None
    beside: tuple[str, ...] = ()
    # Of the limit, by `share`.
    share: float | None = None
    # Bytes that the largest operand asks for, times the threads that may run one.
    operands: float | None = None

    def best_peer(self) -> str | None:
        """The peer with the least median."""
        others = [p for p in self.sides if p != OURS and p not in self.beside]
        return min(others, key=lambda p: self.sides[p].median(), default=None)

    def ratio(self) -> float | None:
        """The best peer's time over ours: the median over the turns of the ratio of both sides' medians."""
        peer = self.best_peer()
        if peer is None or OURS not in self.sides:
            return None
        pairs = zip(self.sides[peer].turns, self.sides[OURS].turns)
        return statistics.median(statistics.median(p) / statistics.median(o) for p, o in pairs)

    def beyond(self) -> float | None:
        """Bytes resident beyond the inputs and the result."""
        ours = self.sides.get(OURS)
        return None if ours is None or not ours.rss else ours.rss - self.held

    def allowed(self) -> float | None:
        """Bytes that may be resident beyond them: an operand a thread, and what the process takes."""
        return None if self.operands is None else self.operands + PROCESS


def line(row: Row) -> str:
    """A row for the screen."""
    if row.failed is not None:
        return f"{row.name:44} failed: {row.failed.splitlines()[0]}"
    ours, peer, ratio = row.sides[OURS].median(), row.best_peer(), row.ratio()
    others = "  ".join(f"{p} {s.median():.4g}" for p, s in row.sides.items() if p != OURS)
    share = "" if row.share is None else f"  {row.share:4.0%} of {row.limit.kind}"
    beyond = "" if row.beyond() is None else f"  +{row.beyond() / 2**20:.0f} MiB"
    return f"{row.name:44} {ours:9.4g} s  {'' if ratio is None else f'x {ratio:5.2f}'} {peer or ''}{share}{beyond}  ({others})"


HEAD = ["workload", "Tessera s", "best peer", "its s", "peer / Tessera", "share of limit", "other peers s", "RSS MiB", "beyond data MiB", "allowed MiB"]


def table(rows: list[Row]) -> str:
    """All rows by family as a table of Markdown, with the geometric mean below each."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for family in dict.fromkeys(r.family for r in rows):
        mine = [r for r in rows if r.family == family]
        mean = geometric_mean(mine)
        lines.append(f"| **{family}** | | | | {'' if mean is None else f'**{mean:.2f}**'} | | | | | |")
        lines += [cells_of(r) for r in mine]
    return "\n".join(lines)


def cells_of(r: Row) -> str:
    if r.failed is not None:
        return f"| {r.name} | failed | | | | | | | | |"
    ours, peer, ratio = r.sides[OURS], r.best_peer(), r.ratio()
    others = ", ".join(f"{p} {s.median():.3g}" for p, s in r.sides.items() if p not in (OURS, peer))
    one = [
        r.name.replace("|", "\\|"),
        f"{ours.median():.4g}",
        peer or "",
        f"{r.sides[peer].median():.4g}" if peer else "",
        "" if ratio is None else f"{ratio:.2f}",
        "" if r.share is None else f"{r.share:.0%} {r.limit.kind}",
        others,
        f"{ours.rss / 2**20:.0f}" if ours.rss else "",
        f"{r.beyond() / 2**20:.0f}" if r.beyond() is not None else "",
        f"{r.allowed() / 2**20:.0f}" if r.beyond() is not None and r.allowed() is not None else "",
    ]
    return "| " + " | ".join(one) + " |"


def ratios_of(rows: list[Row]) -> list[float]:
    """The ratios to peers; Tessera on one thread is none."""
    some = [r for r in rows if r.failed is None and not (r.best_peer() or OURS).startswith(OURS)]
    return [x for r in some if (x := r.ratio()) is not None]


def geometric_mean(rows: list[Row]) -> float | None:
    """Of the ratios."""
    ratios = ratios_of(rows)
    return math.exp(statistics.fmean(math.log(x) for x in ratios)) if ratios else None


def summary(rows: list[Row]) -> str:
    """What all rows say together."""
    ratios = ratios_of(rows)
    if not ratios:
        return "nothing was compared"
    ahead = sum(x >= 1 for x in ratios)
    bounded = [r for r in rows if r.failed is None and r.beyond() is not None and r.allowed() is not None]
    within = sum(r.beyond() <= r.allowed() for r in bounded)
    return (
        f"{len(rows)} workloads; as fast as the best peer or faster in {ahead} of {len(ratios)}; geometric mean "
        f"{geometric_mean(rows):.2f}; memory within what is allowed in {within} of {len(bounded)}"
    )


def save(path: Path, rows: list[Row], limits: dict):
    """Adds the rows to a file, in place of older ones of the same names."""
    old, kept = load(path) if path.exists() else ([], {})
    new = {(r.family, r.name): r for r in [*old, *rows]}
    text = {"limits": {**kept, **limits}, "rows": [asdict(r) for r in new.values()]}
    path.write_text(json.dumps(text, indent=1) + "\n")


def load(path: Path) -> tuple[list[Row], dict]:
    """The rows and limits of a file."""
    text = json.loads(path.read_text())
    rows = []
    for r in text["rows"]:
        r["limit"] = Limit(**r["limit"]) if r["limit"] else None
        r["sides"] = {k: Side(**s) for k, s in r["sides"].items()}
        rows.append(Row(**r))
    return rows, text["limits"]


def write(page: Path, rows: list[Row], limits: dict):
    """Puts the table between the marks of a page."""
    start, rest = page.read_text().split("<!-- table -->")
    end = rest.split("<!-- end -->")[1]
    measured = "; ".join(f"{k} {v}" for k, v in limits.items())
    page.write_text(f"{start}<!-- table -->\n{summary(rows)}.\n\nLimits: {measured}.\n\n{table(rows)}\n<!-- end -->{end}")
