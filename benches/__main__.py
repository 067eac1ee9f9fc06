"""`python benches`: Tessera beside its peers. See README.md."""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches"))

from suite import families, report, run  # noqa: E402
from suite.limits import Limits  # noqa: E402
from suite.workload import Context  # noqa: E402


def arguments():
    p = argparse.ArgumentParser(prog="python benches", description="Measures Tessera beside its peers.")
    p.add_argument("--only", action="append", default=[], metavar="TEXT", help="families and workloads whose name has it")
    p.add_argument("--without", action="append", default=[], metavar="PEER", help="leaves out peers whose name has it")
    p.add_argument("--scale", type=float, default=1.0, help="cells of each workload, as a part of the whole size")
    p.add_argument("--quick", action="store_true", help="the same as --scale 0.02 --turns 2 --seconds 0.2")
    p.add_argument("--seconds", type=float, default=1.5, help="for each side of a workload, about")
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--check", action="store_true", help="compares the cells of all sides and measures nothing")
    p.add_argument("--prepare", action="store_true", help="makes the files that both sides read and measures nothing")
    p.add_argument("--list", action="store_true", help="names the workloads")
    p.add_argument("--json", type=Path, metavar="FILE", help="adds the figures to this file")
    p.add_argument("--show", type=Path, metavar="FILE", help="measures nothing, tells the figures of such a file")
    p.add_argument("--write", type=Path, metavar="PAGE", help="writes the table into a page of benches/results")
    p.add_argument("--no-build", action="store_true", help="takes target/release as it is")
    p.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "tessera", help="what is measured")
    p.add_argument("--data", type=Path, default=ROOT / "target" / "bench-data", help="files that both sides read; kept")
    return p.parse_args()


def build():
    subprocess.run(["cargo", "build", "--release", "--workspace", "--bin", "tessera"], cwd=ROOT, check=True)


def chosen(args, context):
    """The families with those of their workloads that were asked for."""
    for family in families.NAMES:
        every = list(families.load(family, context))
        some = [w for w in every if not args.only or any(o in family or o in w.name for o in args.only)]
        some = [replace(w, peers={k: v for k, v in w.peers.items() if not any(o in k for o in args.without)}) for w in some]
        if some:
            yield family, some


def main() -> int:
    args = arguments()
    if args.quick:
        args.scale, args.turns, args.seconds = min(args.scale, 0.02), 2, 0.2
    if args.show:
        rows, limits = report.load(args.show)
        return finish(args, rows, limits)
    args.data.mkdir(parents=True, exist_ok=True)
    context = Context(args.scale, args.data.resolve(), args.binary.resolve())
    if args.list:
        for family, some in chosen(args, context):
            print(family, *(f"    {w.name}" for w in some), sep="\n")
        return 0
    if not args.no_build:
        build()
    limits, rows, fine = Limits(), [], True
    for name, some in chosen(args, context):
        family = run.Family(name, context)
        try:
            for w in some:
                if args.prepare:
                    family.worker(run.OURS).ask(do="prepare", workload=w.name)
                    continue
                if args.check:
                    fine &= run.check(family, w)
                    continue
                row = run.measure(family, w, args.seconds, args.turns)
                limits.judge(row)
                rows.append(row)
                print(report.line(row), flush=True)
                if args.json:
                    report.save(args.json, [row], limits.told())
        finally:
            family.close()
    if args.prepare:
        return 0
    if args.check:
        print("all sides agree" if fine else "some sides differ")
        return 0 if fine else 1
    return finish(args, rows, limits.told())


def finish(args, rows, limits) -> int:
    if args.write:
        report.write(args.write, rows, limits)
    elif args.show:
        print(report.table(rows))
    print(report.summary(rows), *(f"{k}: {v}" for k, v in limits.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
