"""Tessera's side: a process of `tessera bench --turns`."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from .peers import Failed
from .workload import Context, Workload


class Bench:
    """One workload's session: set up and warmed up once, then measured in turns."""

    def __init__(self, context: Context, w: Workload, env: dict[str, str], keep: Path | None = None):
        self.files = tempfile.TemporaryDirectory(prefix="tessera-bench-")
        directory = Path(self.files.name)
        (directory / "run.sql").write_text(w.sql)
        command = [str(context.binary), "--warehouse", str(directory / "warehouse"), *w.args]
        command += ["bench", "-f", str(directory / "run.sql"), "--json", "--turns"]
        if w.setup:
            (directory / "setup.sql").write_text(w.setup)
            command += ["--setup", str(directory / "setup.sql")]
        if keep:
            command += ["--keep", str(keep)]
            if w.look:
                command += ["--check", w.look]
        self.errors = open(directory / "errors", "w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env={**os.environ, **env},
        )
        self.read()
        # The set-up may take more than the statement: only the latter counts.
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def read(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise Failed(self.errors.read().strip()[-500:] or f"ended with {self.process.returncode}")
        return line

    def run(self, runs: int) -> dict:
        """The figures of so many runs."""
        self.process.stdin.write(f"{runs}\n")
        self.process.stdin.flush()
        return json.loads(self.read())

    def rss(self) -> int:
        """The most bytes resident since the warm-up."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        return 0

    def close(self):
        """Ends it."""
        self.process.stdin.close()
        status = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().strip()
        self.errors.close()
        self.files.cleanup()
        if status != 0:
            raise Failed(words[-500:] or f"ended with {status}")
