"""Measures one workload: all sides, in turns."""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np

from . import peers
from .ours import Bench
from .report import Row, Side
from .workload import Context, Workload

OURS = "tessera"
# Further behind than this after a turn, a peer sits the others out: only the best peer is compared.
BEHIND = 4.0


class Family:
    """The processes of the peers, for the workloads of one family."""

    def __init__(self, name: str, context: Context):
        self.name, self.context, self.workers = name, context, {}

    def worker(self, peer: str) -> peers.Worker:
        """The process in whose environment a peer runs."""
        env = peers.ENVIRONMENTS.get(peer, {})
        key = tuple(sorted(env.items()))
        if key not in self.workers:
            self.workers[key] = peers.Worker(self.name, self.context, env)
        return self.workers[key]

    def close(self):
        """Ends them."""
        for worker in self.workers.values():
            worker.close()


class Ours:
    """Tessera as a side."""

    def __init__(self, family: Family, w: Workload, env: dict):
        self.family, self.w, self.operand = family, w, None
        self.bench = None if w.ours else Bench(family.context, w, env)
        if w.ours:
            self.first = family.worker(OURS).ask(do="make", workload=w.name, peer=OURS)["first"]
        else:
            figures = self.bench.run(1)
            self.first, self.operand = figures["times"][0], figures["operand_bytes"]

    def run(self, runs: int) -> list[float]:
        if self.bench:
            return self.bench.run(runs)["times"]
        return self.family.worker(OURS).ask(do="run", workload=self.w.name, peer=OURS, runs=runs)["times"]

    def rss(self) -> int:
        return self.bench.rss() if self.bench else 0

    def close(self):
        if self.bench:
            self.bench.close()


class Peer:
    """A peer as a side."""

    def __init__(self, family: Family, w: Workload, name: str):
        self.name, self.w, self.worker, self.peak = name, w, family.worker(name), 0
        self.first = self.worker.ask(do="make", workload=w.name, peer=name)["first"]

    def run(self, runs: int) -> list[float]:
        got = self.worker.ask(do="run", workload=self.w.name, peer=self.name, runs=runs)
        self.peak = max(self.peak, got["rss"])
        return got["times"]

    def rss(self) -> int:
        return self.peak

    def close(self):
        """Its work goes with that of the other peers."""


def measure(family: Family, w: Workload, seconds: float, turns: int, say=print) -> Row:
    """One row. A side that fails or is absent is told and left out."""
    env = family.worker(OURS).ask(do="prepare", workload=w.name)["env"]
    row = Row(family.name, w.name, w.limit, w.held, beside=w.beside)
    sides = {}
    try:
        try:
            sides[OURS] = Ours(family, w, env)
            if sides[OURS].operand is not None:
                row.operands = float(sides[OURS].operand * os.cpu_count())
        except peers.Failed as e:
            row.failed = str(e)
            say(f"{w.name}: {e}")
        if w.alone:
            alone = dataclasses.replace(w, args=(*w.args, "--threads", "1"))
            sides["tessera, one thread"] = Ours(family, alone, env)
        if w.twin:
            sides["tessera, declared nothing"] = Ours(family, dataclasses.replace(w, sql=w.twin), env)
        for name in w.peers:
            try:
                sides[name] = Peer(family, w, name)
            except (peers.Absent, peers.Failed) as e:
                row.absent[name] = str(e)
                say(f"{w.name}: without {name}: {e}")
        take_turns(sides, row, seconds, turns)
        for name, side in sides.items():
            row.sides[name].rss = side.rss()
    finally:
        for side in sides.values():
            side.close()
        for worker in family.workers.values():
            worker.ask(do="drop", inputs=False)
    return row


def take_turns(sides: dict, row: Row, seconds: float, turns: int):
    """Lets each side run a while, again and again, each time another one first."""
    for name in sides:
        row.sides[name] = Side()
    order = list(sides)
    for turn in range(turns):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            side, got = sides[name], row.sides[name]
            if turn and name != OURS and got.median() > BEHIND * min(s.median() for s in row.sides.values()):
                continue
            once = got.median() if got.turns else side.first
            if turn and once * turn > 3 * seconds:
                # Slow work has been seen often enough, but every side that is compared has been seen twice.
                if turn >= 2:
                    continue
            got.turns.append(side.run(max(1, min(int(seconds / turns / max(once, 1e-6)), 200))))


def check(family: Family, w: Workload, say=print) -> bool:
    """Do Tessera and the peers give the same cells?"""
    worker = family.worker(OURS)
    env = worker.ask(do="prepare", workload=w.name)["env"]
    if w.rtol is None:
        return True
    fine = True
    with tempfile.TemporaryDirectory() as top:
        ours = Path(top) / "tessera"
        ours.mkdir()
        try:
            if w.ours:
                worker.ask(do="make", workload=w.name, peer=OURS)
                worker.ask(do="save", workload=w.name, peer=OURS, into=str(ours))
            else:
                bench = Bench(family.context, w, env, keep=ours)
                bench.run(1)
                bench.close()
        except peers.Failed as e:
            say(f"{w.name}: {e}")
            return False
        mine = [np.load(p) for p in sorted(ours.glob("r*.npy" if not w.ours else "*.npy"))]
        if w.twin:
            other = Path(top) / "twin"
            other.mkdir()
            bench = Bench(family.context, dataclasses.replace(w, sql=w.twin), env, keep=other)
            bench.run(1)
            bench.close()
            theirs = [np.load(p) for p in sorted(other.glob("r*.npy"))]
            if len(theirs) != len(mine) or any(a.tobytes() != b.tobytes() for a, b in zip(mine, theirs)):
                say(f"{w.name}: other bits where nothing is declared missing")
                fine = False
        for name in w.peers:
            theirs = Path(top) / name.replace(" ", "_").replace("/", "_")
            theirs.mkdir()
            try:
                at = family.worker(name)
                at.ask(do="make", workload=w.name, peer=name)
                n = at.ask(do="save", workload=w.name, peer=name, into=str(theirs))["parts"]
            except (peers.Absent, peers.Failed) as e:
                say(f"{w.name}: without {name}: {e}")
                continue
            other = [np.load(theirs / f"{i}.npy") for i in range(n)]
            if (why := differ(mine, other, w.rtol)) is not None:
                say(f"{w.name}: {name} differs: {why}")
                fine = False
        worker.ask(do="drop")
    return fine


def differ(mine, other, rtol: float) -> str | None:
    """Why the cells are not the same; None if they are. A result may be flat on one side."""
    if len(mine) != len(other):
        return f"{len(mine)} results, {len(other)}"
    for a, b in zip(mine, other, strict=True):
        if a.size != b.size:
            return f"shapes {a.shape}, {b.shape}"
        a, b = (x.reshape(-1).astype(np.float64) for x in (a, b))
        if not np.allclose(a, b, rtol=rtol, atol=rtol * max(np.nanmax(np.abs(b), initial=0.0), 1e-300), equal_nan=True):
            i = int(np.nanargmax(np.abs(a - b)))
            return f"at {i} of {a.size}: {a[i]!r}, {b[i]!r}"
    return None
