"""Cost of scrapes and of viewers to the daemon: ``python -m tools.bench.watched`` (root).

50 workloads run on the bench's own control groups, at one tick a second. The daemon's CPU time is read from the
kernel's scheduler (nanoseconds of every thread) and compared between equal spans: no viewer, Prometheus scrapes,
``perphctl top``, and the dashboard with an open page, each in a separate process. Spans alternate, so that other load
affects all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import pty
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tools.bench.groups import BenchGroups
from tools.bench.scene import STATE_BELOW, configuration
from tools.bench.whole import ROOT, SETTLE_S, WAKING, WORKLOADS, _program, _wait_until_it_answers

SCRAPE_EVERY_S = 0.5
"""Seconds between scrapes, far more frequent than usual, so that their cost exceeds the noise."""


PATIENCE_S = 180.0
"""Seconds to wait for the dashboard to start on a busy machine."""


class LookedError(Exception):
    """A viewer could not connect."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one span")
    parser.add_argument("--rounds", type=int, default=6, help="of all spans")
    given = parser.parse_args()
    with (
        BenchGroups(WORKLOADS, WORKLOADS, WAKING) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as folder,
    ):
        state = Path(folder)
        config = state / "perphd.toml"
        config.write_text(configuration(groups.paths, state))
        config.chmod(0o600)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PERPHD_SOCKET": str(state / "perphd.sock")}
        with (state / "log").open("wb") as log:
            command = [_program(), "run", "--config", str(config)]
            daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _wait_until_it_answers(daemon, state / "perphd.sock", state / "log")
            time.sleep(SETTLE_S)
            _report(daemon.pid, state, environment, given.seconds, given.rounds)
        finally:
            daemon.terminate()
            daemon.wait()


def _report(pid: int, state: Path, environment: dict[str, str], seconds: float, rounds: int) -> None:
    alone: list[float] = []
    scrapes: list[float] = []
    with_top: list[float] = []
    with_both: list[float] = []
    lines = 0
    for _ in range(rounds):
        alone.append(_span(pid, seconds))
        before, count = _cpu_s(pid), 0
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            lines = _scrape(state / "perphd.sock")
            count += 1
            time.sleep(SCRAPE_EVERY_S)
        scrapes.append((_cpu_s(pid) - before - alone[-1] * seconds) / count)
        with _top(environment):
            with_top.append(_span(pid, seconds))
            with _dashboard(environment, state / "url"):
                with_both.append(_span(pid, seconds))
    print(f"{WORKLOADS} workloads, {rounds} rounds of {seconds:g} s each; median (least to most)")
    print(f"a scrape, {lines} lines: {_words([1000 * s for s in scrapes], 'ms')} of CPU time")
    print(f"nobody looks: {_words([100 * share for share in alone], '% of a core')}")
    print(f"top looks: {_words([100 * share for share in with_top], '% of a core')}")
    print(f"top and a dashboard's page look: {_words([100 * share for share in with_both], '% of a core')}")


def _words(found: list[float], unit: str) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) {unit}"


def _span(pid: int, seconds: float) -> float:
    before, began_s = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began_s)


def _cpu_s(pid: int) -> float:
    """CPU time of all threads of the daemon, whose number is constant during the measurement."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _scrape(path: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(10.0)
        line.connect(str(path))
        line.sendall(b"GET /metrics HTTP/1.0\r\nHost: perphd\r\n\r\n")
        parts = []
        while part := line.recv(1 << 16):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise LookedError(head.decode(errors="replace"))
    return body.count(b"\n")


@contextlib.contextmanager
def _top(environment: dict[str, str]) -> Iterator[None]:
    """``perphctl top`` on a terminal of 160 columns, whose output is read."""
    leader, follower = pty.openpty()
    sized = {**environment, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "45"}
    process = subprocess.Popen(
        [sys.executable, "-m", "perphd.commands", "top"],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env=sized,
        cwd=ROOT,
    )
    os.close(follower)
    reader = threading.Thread(target=_drain, args=(leader,), daemon=True)
    reader.start()
    try:
        time.sleep(SETTLE_S)
        yield
        if process.poll() is not None:
            raise LookedError(f"perphctl top ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait()
        reader.join(5.0)
        os.close(leader)


def _drain(leader: int) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while os.read(leader, 1 << 16):
            pass


@contextlib.contextmanager
def _dashboard(environment: dict[str, str], link: Path) -> Iterator[None]:
    """``perphctl dashboard`` with a page that follows it."""
    link.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "perphd.commands", "dashboard", "--port", "0", "--url-file", str(link)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
    )
    try:
        until_s = time.monotonic() + PATIENCE_S
        while not (link.exists() and link.read_text().endswith("\n")):
            if process.poll() is not None or time.monotonic() > until_s:
                raise LookedError(f"the dashboard wrote no link: {process.poll()}")
            time.sleep(0.2)
        url = urlsplit(link.read_text().strip())
        visit = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20.0)
        visit.request("GET", f"{url.path}?{url.query}")
        answer = visit.getresponse()
        answer.read()
        cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        stream = http.client.HTTPConnection(url.hostname or "", url.port, timeout=20.0)
        stream.request("GET", "/api/stream", headers={"Cookie": cookie})
        events = stream.getresponse()
        if events.status != 200:
            raise LookedError(f"the dashboard's stream: {events.status} {events.reason}")
        reader = threading.Thread(target=_follow, args=(events,), daemon=True)
        reader.start()
        time.sleep(2.0)
        yield
        if not reader.is_alive():
            raise LookedError("the dashboard's stream ended")
    finally:
        process.terminate()
        process.wait()


def _follow(events: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        while events.read1(1 << 16):
            pass


if __name__ == "__main__":
    main()
