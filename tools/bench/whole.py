"""The daemon as a process: its CPU share and memory at 50 workloads and one tick a second."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.groups import BenchError, BenchGroups
from tools.bench.scene import LRA_SHARE, STATE_BELOW, configuration

ROOT = Path(__file__).parents[2]
WORKLOADS = 50
WAKING = WORKLOADS - WORKLOADS // LRA_SHARE
"""Batch's processes wake four times a second, because groups that are completely idle cost less. The LRAs' processes do
not wake: without an SLI, a program that hardly runs looks disturbed whenever the machine is busy, and the bench would
then measure the policy.
"""
SETTLE_S = 10.0
"""Seconds between the daemon's first answer and the measurement, for opening files and first model updates."""
_START_WAIT_S = 30.0
_STOP_WAIT_S = 30.0
_TICK_HZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Whole:
    """Resource use of the process. ``pss_bytes``: shared pages charged by share; 0 if the kernel does not report it."""

    workloads: int
    seconds: float
    cpu_pct: float
    rss_bytes: int
    rss_peak_bytes: int
    pss_bytes: int
    threads: int
    open_fds: int
    start_s: float
    missed_ticks: int | None
    tick_ms_p50: float | None
    tick_ms_p99: float | None
    imports: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def measure(seconds: float) -> Whole:
    """Start the daemon on the bench's own groups, measure it for this time, and stop it.

    Raises:
        BenchError: the groups cannot be made, or the daemon does not start.
    """
    imports = _imports()
    with (
        BenchGroups(WORKLOADS, WORKLOADS, WAKING) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as folder,
    ):
        state = Path(folder)
        config = state / "perphd.toml"
        config.write_text(configuration(groups.paths, state))
        config.chmod(0o600)
        log = state / "log"
        began = time.monotonic()
        with log.open("wb") as output:
            # Run this tree's daemon, regardless of the environment's installation.
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = [_program(), "run", "--config", str(config)]
            daemon = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _wait_until_it_answers(daemon, state / "perphd.sock", log)
            start_s = time.monotonic() - began
            time.sleep(SETTLE_S)
            return _watch(daemon.pid, state / "perphd.sock", seconds, start_s, imports)
        finally:
            daemon.terminate()
            try:
                daemon.wait(_STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _program() -> str:
    program = Path(sys.executable).parent / "perphd"
    if not program.exists():
        raise BenchError(f"{program} does not exist: install perphd into this environment (make bench does)")
    return str(program)


def _wait_until_it_answers(daemon: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    give_up_s = time.monotonic() + _START_WAIT_S
    while time.monotonic() < give_up_s:
        if daemon.poll() is not None:
            break
        with contextlib.suppress(OSError):
            _get(path, "/v1/status")
            return
        time.sleep(0.05)
    raise BenchError(f"the daemon did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _get(path: Path, target: str) -> Any:
    """One GET over the control socket with only the standard library, because imports would cost time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(5.0)
        line.connect(str(path))
        line.sendall(f"GET {target} HTTP/1.0\r\nHost: perphd\r\n\r\n".encode())
        parts = []
        while part := line.recv(1 << 16):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise OSError(f"{target}: {head[:100]!r}")
    return json.loads(body)


def _watch(pid: int, path: Path, seconds: float, start_s: float, imports: dict[str, Any]) -> Whole:
    process = Path(f"/proc/{pid}")
    cpu_before, began = _cpu_s(process), time.monotonic()
    time.sleep(seconds)
    cpu_after, ended = _cpu_s(process), time.monotonic()
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    fds = len(os.listdir(process / "fd"))
    pss = _pss_bytes(process)
    cost = _get(path, "/v1/status").get("cost", {})
    return Whole(
        workloads=WORKLOADS,
        seconds=ended - began,
        cpu_pct=100.0 * (cpu_after - cpu_before) / (ended - began),
        rss_bytes=_kib(status["VmRSS"]),
        rss_peak_bytes=_kib(status["VmHWM"]),
        pss_bytes=pss,
        threads=int(status["Threads"]),
        open_fds=fds,
        start_s=start_s,
        missed_ticks=cost.get("missed_ticks"),
        tick_ms_p50=_number(cost.get("tick_ms_p50")),
        tick_ms_p99=_number(cost.get("tick_ms_p99")),
        imports=imports,
    )


def _cpu_s(process: Path) -> float:
    """User and system time of all threads, those that ended included."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK_HZ


def _pss_bytes(process: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return _kib(line.partition(":")[2])
    return 0


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _imports() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.memory"], check=True, capture_output=True, text=True, timeout=60
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
