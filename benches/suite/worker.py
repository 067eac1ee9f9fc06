"""The peers' process: one request a line, one answer a line.

`prepare` makes the files of a workload, `make` a peer's work and runs it once, `run` times it, `drop` lets the work and
the inputs of a workload go.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from suite import cells, families  # noqa: E402
from suite.workload import Context  # noqa: E402


def resident_peak(reset: bool = False) -> int:
    """The most bytes resident since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def timed(work, runs: int) -> list[float]:
    """Seconds of each run; a result goes before the next run starts."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
        del result
    return times


def answer(request, workloads, made):
    w = workloads[request["workload"]] if "workload" in request else None
    match request["do"]:
        case "prepare":
            if w.prepare:
                w.prepare()
            return {"env": w.env()}
        case "make":
            peer = request["peer"]
            maker = w.ours if peer == "tessera" else w.peers[peer]
            work = maker()
            first = timed(work, 1)[0]
            # The first run of what is compiled says nothing about the others.
            made[w.name, peer] = work
            return {"first": min(first, timed(work, 1)[0]) if first < 0.5 else first}
        case "run":
            resident_peak(reset=True)
            times = timed(made[w.name, request["peer"]], request["runs"])
            return {"times": times, "rss": resident_peak()}
        case "save":
            import numpy as np

            got = made[w.name, request["peer"]]()
            parts = got if isinstance(got, (tuple, list)) else (got,)
            for i, part in enumerate(parts):
                np.save(Path(request["into"]) / f"{i}.npy", np.asarray(part))
            return {"parts": len(parts)}
        case "drop":
            made.clear()
            if request.get("inputs"):
                cells.forget()
            gc.collect()
            return {}


def main():
    family, scale, data, binary = sys.argv[1:]
    context = Context(float(scale), Path(data), Path(binary))
    workloads = {w.name: w for w in families.load(family, context)}
    made = {}
    # Libraries that print must not speak in between.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), workloads, made)
        except ImportError as e:
            reply = {"absent": f"no module {e.name}"}
        except Exception as e:  # a peer may fail in any way; the run goes on without it
            traceback.print_exc()
            reply = {"error": f"{type(e).__name__}: {e}"[:500]}
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
