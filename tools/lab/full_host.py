"""A host full of undeclared work and an unreachable target: harm by perphd's attempts.

python -m tools.lab.full_host                      Redis and an HTTP service, three repetitions: some 12 minutes
python -m tools.lab.full_host --quick              one repetition of short windows

Every repetition runs each service once with perphd in observe and once in enforce, alternately: three undeclared busy
processes per CPU, as many of batch, and an open loop of requests, whose latency counts from their due time. The
objective is unreachable even alone. The report gives the clients' p95 in enforce over observe; perphd's writes in the
first minute and their maximum in any ten minutes after it (without restores at its stop); and whether it narrowed the
service's CPUs (with the default touch = "batch" it must not). Needs root, and redis-server for Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tools.lab import groups as g
from tools.lab import processes
from tools.lab.groups import Groups
from tools.lab.processes import LabError, Ledger
from tools.lab.stats import spread

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 8
HOGS = g.NATIVE
SPIN = "while True: pass"
MODES = ("observe", "enforce")
CONFIG = """\
[daemon]
mode = "{mode}"
state_dir = "{folder}/state"
socket = "{folder}/perphd.sock"

[[lra]]
name = "service"
cgroup = "{lra}"
max_latency_ms = {limit_ms}

[lra.sli]
source = "tcp"

[[batch]]
name = "batch"
cgroup = "{batch}"
"""
HTTP = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1
    def do_GET(self):
        total = sum(range(20000))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A service. ``answer_ends``: end of every answer; ``limit_ms``: an objective that it cannot reach."""

    name: str
    request: bytes
    answer_ends: bytes
    rate_per_s: float
    limit_ms: float

    def command(self, port: int, folder: Path) -> list[str]:
        """Its command line."""
        if self.name == "http":
            return [sys.executable, "-c", HTTP, str(port)]
        program = shutil.which("redis-server")
        if program is None:
            raise LabError("redis-server is not installed (Debian package redis-server)")
        return [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]


SERVICES = {
    "redis": Service("redis", b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n", 1000.0, 0.01),
    "http": Service("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n\r\nok", 120.0, 0.1),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: ``learn`` beside hogs alone, ``settle`` after batch arrives, ``window`` that is measured."""

    learn: float = 20.0
    settle: float = 15.0
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: the clients' latency, and perphd's writes after batch came: seconds since then, path, value."""

    service: str
    mode: str
    p50_ms: float
    p95_ms: float
    writes: tuple[tuple[float, str, str], ...]

    @property
    def first_minute(self) -> int:
        """Writes in the first minute."""
        return sum(at_s < 60.0 for at_s, _, _ in self.writes)

    @property
    def later(self) -> int:
        """Most writes in any ten minutes after the first minute."""
        times = [at_s for at_s, _, _ in self.writes if at_s >= 60.0]
        return max((sum(start <= at_s < start + 600.0 for at_s in times) for start in times), default=0)

    @property
    def narrowed(self) -> bool:
        """True if the CPUs of the service itself were written."""
        return any(g.LRA in path and "cpuset" in path for _, path, _ in self.writes)


async def ask(service: Service, port: int, seconds: float) -> list[float]:
    """Latencies (ms) since requests were due; waiting for a free connection counts as waiting for the service."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    found: list[float] = []

    async def one(due_s: float) -> None:
        reader, writer = await free.get()
        writer.write(service.request)
        await reader.readuntil(service.answer_ends)
        found.append(1000.0 * (time.monotonic() - due_s))
        free.put_nowait((reader, writer))

    began_s = time.monotonic()
    async with asyncio.TaskGroup() as running:
        for n in range(int(seconds * service.rate_per_s)):
            due_s = began_s + n / service.rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            running.create_task(one(due_s))
    return found


def run(ledger: Ledger, groups: Groups, folder: Path, service: Service, mode: str, timing: Timing) -> Seen:
    """One service under one mode, with set-up and removal."""
    groups.reset()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = int(taken.getsockname()[1])
    home = folder / f"{service.name}-{mode}"
    shutil.rmtree(home, ignore_errors=True)
    (home / "state").mkdir(parents=True)
    config = home / "perphd.toml"
    config.write_text(
        CONFIG.format(mode=mode, folder=home, lra=g.LRA, batch=g.BATCH, limit_ms=service.limit_ms)
    )
    running = [ledger.start(service.command(port, home), groups=groups.directories(g.LRA))]
    cpus = os.cpu_count() or 1
    try:
        for _ in range(3 * cpus):
            running.append(ledger.start([sys.executable, "-c", SPIN], groups=groups.directories(HOGS)))
        program = "from perphd.commands.daemon import main; main()"
        with (home / "log").open("wb") as log:
            argv = [sys.executable, "-c", program, "run", "--config", str(config)]
            there = groups.directories(g.CLIENT)
            daemon = ledger.start(
                argv, groups=there, stdout=log, stderr=log, env={"PYTHONPATH": str(ROOT)}, end_signal="TERM"
            )
        running.append(daemon)
        _wait(port)
        asyncio.run(ask(service, port, timing.learn))
        came_s = time.time()
        for _ in range(3 * cpus):
            running.append(ledger.start([sys.executable, "-c", SPIN], groups=groups.directories(g.BATCH)))
        asyncio.run(ask(service, port, timing.settle))
        latencies = sorted(asyncio.run(ask(service, port, timing.window)))
        if daemon.poll() is not None:
            raise LabError(f"perphd ended: {(home / 'log').read_text(errors='replace')[-500:]}")
        stopped_s = time.time()
        daemon.terminate()
        daemon.wait(30.0)
    finally:
        for process in reversed(running):
            ledger.end(process)
    writes = _writes(home / "state" / "perphd.db", came_s, stopped_s)
    p50, p95 = (latencies[int(share * len(latencies))] for share in (0.5, 0.95))
    return Seen(service.name, mode, p50, p95, writes)


def _wait(port: int) -> None:
    deadline = time.monotonic() + 30.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise LabError("the service did not start in time") from None
            time.sleep(0.1)


def _writes(store: Path, since_s: float, until_s: float) -> tuple[tuple[float, str, str], ...]:
    with closing(sqlite3.connect(store)) as found:
        rows = found.execute("select wall_s, path, value from writes order by wall_s").fetchall()
    return tuple(
        (wall_s - since_s, str(path), str(value))
        for wall_s, path, value in rows
        if since_s <= wall_s < until_s
    )


def lines(seen: list[Seen]) -> list[str]:
    """The report: a row per service and mode, and enforce over observe."""
    told = [
        "| service | mode | p50 ms | p95 ms (least to most) | writes in the first minute | in ten minutes after it |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(item.service for item in seen):
        by_mode = {mode: [s for s in seen if (s.service, s.mode) == (name, mode)] for mode in MODES}
        for mode, runs in by_mode.items():
            p95 = spread([item.p95_ms for item in runs])
            assert p95 is not None
            p50 = statistics.median(item.p50_ms for item in runs)
            first, later = max(item.first_minute for item in runs), max(item.later for item in runs)
            told.append(
                f"| {name} | {mode} | {p50:.2f} | {p95.median:.2f} ({p95.low:.2f} to {p95.high:.2f}) "
                f"| {first} | {later} |"
            )
        pairs = [e.p95_ms / o.p95_ms for o, e in zip(by_mode["observe"], by_mode["enforce"], strict=True)]
        told.append(
            f"{name}: p95 in enforce over observe: {statistics.median(pairs):.2f} "
            f"({min(pairs):.2f} to {max(pairs):.2f})"
        )
    told.append(
        "The service's CPUs were " + ("NARROWED" if any(s.narrowed for s in seen) else "never narrowed") + "."
    )
    return told


def main() -> int:
    """Run, print, and keep the measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lab.full_host", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions")
    parser.add_argument("--quick", action="store_true", help="one repetition of short windows")
    parser.add_argument("--window", type=float, default=60.0, help="measured seconds per run")
    parser.add_argument(
        "--first", default=MODES[0], choices=MODES, help="mode of the first run of the first repetition"
    )
    parser.add_argument(
        "--services", default=",".join(SERVICES), help="services: redis, http, separated by commas"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/full_host.json"), help="JSON file of the measurements"
    )
    options = parser.parse_args()
    services = [SERVICES[name] for name in options.services.split(",")]
    timing, reps = (
        (Timing(8.0, 5.0, 10.0), 1) if options.quick else (Timing(window=options.window), options.reps)
    )
    seen: list[Seen] = []
    forth = MODES if options.first == MODES[0] else MODES[::-1]
    orders = cycle((forth, forth[::-1]))
    if processes.running():
        print("lab: another lab runs", file=sys.stderr)
        return 1
    try:
        with (
            closing(Ledger()) as ledger,
            Groups() as groups,
            tempfile.TemporaryDirectory(prefix="perphd-full-host-") as folder,
        ):
            groups.shelter()
            for rep, order in zip(range(reps), orders, strict=False):
                for service in services:
                    for mode in order:
                        seen.append(run(ledger, groups, Path(folder), service, mode, timing))
                        print(
                            f"{rep + 1}/{reps} {service.name} {mode}: p95 {seen[-1].p95_ms:.2f} ms",
                            flush=True,
                        )
    except LabError as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    told = [
        {"service": s.service, "mode": s.mode, "p50_ms": s.p50_ms, "p95_ms": s.p95_ms, "writes": s.writes}
        for s in seen
    ]
    options.out.write_text(json.dumps(told))
    print("\n".join(lines(seen)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
