"""Ctrl-C, close, threads and forks: nothing crashes, hangs or stays."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tessera_sql as ts
from tessera_sql import _native

#: Some minutes of work, in operands of milliseconds.
SLOW = (
    "SELECT sum(sin(random_normal([200000, 20000], seed => 1, chunks => [500, 500]))) AS s"
)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def soon(is_so: Callable[[], bool]) -> bool:
    """Waits for something that other threads bring about."""
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    return is_so()


def interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_ctrl_c_stops_a_statement(con: ts.Connection) -> None:
    for _ in range(5):
        relation = con.sql(SLOW)
        sent = []

        def send() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.5, send)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            relation.to_numpy()
        # 200 ms on a machine that is not loaded.
        assert time.monotonic() - sent[0] < 5
        timer.join()
        assert con.sql("SELECT 1 + 1 AS x").to_numpy() == 2
    assert soon(lambda: con._engine.memory_used() == 0)


def test_an_exception_of_a_watcher_is_no_answer(con: ts.Connection) -> None:
    def watch(progress: dict) -> None:
        raise RuntimeError(progress["state"])

    with pytest.raises(RuntimeError, match="RUNNING|PLANNING|QUEUED"):
        con._engine.run(SLOW, [], watch)


def test_close_ends_what_runs(tmp_path: Path) -> None:
    before = threads(), files()
    for _ in range(3):
        con = ts.connect(warehouse=tmp_path, threads=2)
        told: list[BaseException] = []

        def run(con: ts.Connection = con, told: list = told) -> None:
            try:
                con.sql(SLOW).to_numpy()
            except ts.Error as e:
                told.append(e)

        runner = threading.Thread(target=run)
        runner.start()
        time.sleep(0.3)
        con.close()
        con.close()
        runner.join(20)
        assert not runner.is_alive() and isinstance(told[0], (ts.Cancelled, ts.Error))
    assert soon(lambda: (threads(), files()) == before)


def test_a_dropped_connection_ends_its_threads(tmp_path: Path) -> None:
    before = threads(), files()

    def open_and_drop() -> None:
        con = ts.connect(warehouse=tmp_path, threads=2)
        con.sql("SELECT sum(arange(10)) AS s").run()
        con.sql("SELECT 1 AS x")

    for _ in range(20):
        open_and_drop()
    assert soon(lambda: (threads(), files()) == before)


def test_threads_share_a_connection(con: ts.Connection) -> None:
    x = np.arange(1000.0)
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(20):
                assert con.sql("SELECT sum(x) * $k AS s FROM x", {"k": k}, locals={"x": x}).to_numpy() == 499500 * k
                with pytest.raises(ts.UserError):
                    con.sql("SELECT nothing FROM x", locals={"x": x}).run()
        except BaseException as e:
            failures.append(e)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert not failures


def _code_of(child: int, seconds: float = 30) -> int | None:
    """The exit code of a child; None if it has not ended in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _child(queue: multiprocessing.Queue, con: ts.Connection) -> None:
    try:
        con.sql("SELECT 1 AS x").run()
    except ts.UserError as e:
        queue.put(str(e))
    queue.put(float(ts.sql("SELECT sum(arange(4)) AS s").to_numpy()))


def test_a_fork_opens_a_session_of_its_own(con: ts.Connection) -> None:
    assert ts.sql("SELECT 1 AS x").to_numpy() == 1
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_child, args=(queue, con))
    child.start()
    assert "parent of this process" in queue.get(timeout=60)
    assert queue.get(timeout=60) == 6
    child.join(60)
    assert child.exitcode == 0
    assert con.sql("SELECT 2 AS x").to_numpy() == 2


def test_a_fork_drops_results_of_its_parent(con: ts.Connection) -> None:
    x = np.ones((1000, 1000))
    results = [con.sql("SELECT x * 2 AS y FROM x").to_numpy() for _ in range(4)]
    child = os.fork()
    if child == 0:
        # The pool that lent the memory has locks of the parent's threads.
        is_right = all((y == 2).all() for y in results)
        results.clear()
        gc.collect()
        os._exit(0 if is_right else 1)
    assert _code_of(child) == 0
    assert all((y == 2).all() for y in results)


def test_children_of_a_process_with_idle_threads_run_statements(con: ts.Connection) -> None:
    x = np.arange(100_000.0)
    for _ in range(60):
        assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == 4999950000
        child = os.fork()
        if child == 0:
            try:
                with ts.connect(threads=2) as own:
                    os._exit(0 if own.sql("SELECT sum(x) AS s FROM x").to_numpy() == 4999950000 else 1)
            finally:
                os._exit(2)
        assert _code_of(child) == 0


def test_a_child_of_a_process_with_a_running_statement_says_so(con: ts.Connection) -> None:
    started = threading.Event()

    def run() -> None:
        started.set()
        with pytest.raises(ts.Error):
            con.sql(SLOW).run()

    worker = threading.Thread(target=run)
    worker.start()
    started.wait()
    time.sleep(0.5)
    child = os.fork()
    if child == 0:
        try:
            ts.connect()
        except ts.UserError as e:
            os._exit(0 if "forked while a statement ran" in str(e) else 3)
        finally:
            os._exit(2)
    code = _code_of(child)
    con.close()
    worker.join(30)
    assert code == 0
    assert ts.sql("SELECT 1 AS x").to_numpy() == 1


def test_an_array_that_changes_while_it_is_read_crashes_nothing(con: ts.Connection) -> None:
    x = np.zeros((2000, 2000))
    stop = threading.Event()

    def change() -> None:
        k = 0.0
        while not stop.is_set():
            k += 1
            x[:] = k

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(5):
            assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() >= 0
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    "end",
    [
        "",
        "con.close()",
        "del con, r",
        "raise SystemExit(0)",
        "import threading; threading.Thread(target=r.to_numpy, daemon=True).start(); import time; time.sleep(0.3)",
    ],
)
def test_the_interpreter_ends(tmp_path: Path, end: str) -> None:
    script = (
        f"import tessera_sql as ts; con = ts.connect(warehouse={str(tmp_path)!r}); r = con.sql({SLOW!r});"
        f" con.sql('SELECT 1 AS x').run()\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_nothing_is_left_after_many_ends(con: ts.Connection) -> None:
    """A thousand interrupted, failed and finished statements: memory, threads and files do not grow."""
    x = np.ones((300, 300))

    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def one(i: int) -> None:
        if i % 4 == 0:
            with pytest.raises(KeyboardInterrupt):
                interrupt_after(i % 7 * 0.004)
                con.sql(SLOW).to_numpy()
                time.sleep(5)
        elif i % 4 == 1:
            with pytest.raises(ts.UserError):
                con.sql("SELECT no_such(x) AS y FROM x", locals={"x": x}).run()
        elif i % 4 == 2:
            con.sql("SELECT x @ x AS y FROM x", locals={"x": x})
        else:
            con.sql("SELECT x @ x AS y FROM x", locals={"x": x}).to_numpy()

    for i in range(100):
        one(i)
    gc.collect()
    before = rss(), threads(), files()
    for i in range(int(os.environ.get("TESSERA_MANNERS", "200"))):
        one(i)
    gc.collect()
    after = rss(), threads(), files()
    assert after[0] - before[0] < 32 << 20
    assert after[1] <= before[1] + 2 and after[2] <= before[2]
    assert soon(lambda: con._engine.memory_used() == 0)


def test_progress_is_shown(con: ts.Connection, capsys: pytest.CaptureFixture[str]) -> None:
    con._progress = True
    timer = interrupt_after(2)
    with pytest.raises(KeyboardInterrupt):
        con.sql(SLOW).to_numpy()
    timer.join()
    told = capsys.readouterr().err
    assert "operands" in told and "\r" in told and told.endswith("\r\x1b[K")


def test_events_go_to_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    # A process that was killed has left files.
    left = tmp_path / "spill" / "tessera-spill-1-0"
    left.mkdir(parents=True)
    (left / "lock").touch()
    with ts.connect(warehouse=tmp_path, spill_dir=tmp_path / "spill", log="info") as con:
        con.sql("SELECT sum(random_uniform([2000, 2000], seed => 1)) AS s").run()
    assert not left.exists()
    assert [r.levelname for r in caplog.records if r.name.startswith("tessera.exec")] == ["INFO"]
    assert str(left) in caplog.text


def test_events_come_while_a_statement_runs(
    con: ts.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    waiting = [("INFO", "tessera_exec::store", "an event")]
    # The first look for events takes this one.
    monkeypatch.setattr(_native, "take_log", lambda: [waiting.pop()] if waiting else [])
    timer = interrupt_after(1)
    with pytest.raises(KeyboardInterrupt):
        con.sql(SLOW).to_numpy()
    timer.join()
    (event,) = (record for record in caplog.records if record.name == "tessera.exec.store")
    assert event.getMessage() == "an event" and time.time() - event.created > 0.5


def test_a_handler_of_events_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [("INFO", "tessera_exec::store", "an event")]
    monkeypatch.setattr(_native, "take_log", lambda: [waiting.pop()] if waiting else [])
    answers: list[object] = []

    class Asks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            answers.append(ts.sql("SELECT 2 AS b").fetchone())

    log, handler = logging.getLogger("tessera"), Asks()
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        # The first statement of the process opens the connection, which has an event to tell.
        asked = threading.Thread(target=lambda: answers.append(ts.sql("SELECT 1 AS a").fetchone()), daemon=True)
        asked.start()
        asked.join(20)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    assert answers == [(2,), (1,)]


def test_ctrl_c_stops_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        timer = interrupt_after(0.3)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ts.connect(f"http://127.0.0.1:{port}")
        timer.join()
        assert time.monotonic() - started < 5


def test_a_later_connection_does_not_silence_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    left = tmp_path / "spill" / "tessera-spill-1-0"
    left.mkdir(parents=True)
    (left / "lock").touch()
    with ts.connect(warehouse=tmp_path / "a", log="info"):
        with ts.connect(warehouse=tmp_path / "b", spill_dir=tmp_path / "spill") as con:
            con.sql("SELECT sum(random_uniform([2000, 2000], seed => 1)) AS s").run()
    assert str(left) in caplog.text
    ts.connect(warehouse=tmp_path / "b", log="warn").close()
