"""Two threads against one, on work that arithmetic bounds: the peer is Tessera itself with `--threads 1`."""

import os

from ..cells import shuffled_sql, sql, temp
from ..workload import Workload


def workloads(context):
    n = context.cells(3e7)
    side = context.side(3000, 3)
    x = temp("x", sql((n,)))
    matrices = "".join(temp(m, shuffled_sql((side, side), k)) for m, k in (("p", 1), ("q", 2)))
    for name, text, setup, held in (
        ("sum(exp(x) * sin(x))", "SELECT sum(exp(x) * sin(x)) AS r FROM x", x, 8 * n),
        ("tanh(x) kept", "SELECT tanh(x) AS r FROM x", x, 16 * n),
        (f"p @ q, {side}³, float64", "SELECT p @ q AS r FROM p, q", matrices, 24 * side**2),
        ("normals: mean", f"SELECT mean(random_normal([{n}], seed => 1)) AS r", "", 0),
        ("sort rows", "SELECT sort(m, 1) AS r FROM m", temp("m", shuffled_sql((context.cells(1e7) // 1000, 1000))), 16 * context.cells(1e7)),
        ("sort a line", "SELECT sort(y) AS r FROM y", temp("y", shuffled_sql((context.cells(1e7),))), 16 * context.cells(1e7)),
        ("histogram", "SELECT histogram(x, bins => 100, range => [0.0, 1.0]).counts AS r FROM x", x, 8 * n),
    ):
        yield Workload(f"{name}, {os.cpu_count()} threads", text, setup=setup, held=held, alone=True, peers={}, rtol=0)
