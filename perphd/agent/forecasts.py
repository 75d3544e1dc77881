"""Starts the forecast worker, updates it once a minute, supervises it and reads its files.

In a tick, the loop only checks whether the worker has ended. Once a minute it writes a line of some kilobytes
to a non-blocking pipe. The worker's files are read on request. If the worker ends, ``perphctl status`` shows
the problem, and it is restarted with exponential backoff.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from perphd.agent import spawn
from perphd.agent.records import Records
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.backoff import BackoffRule, RetryPause
from perphd.domain.belief import ForecastOrigin
from perphd.domain.forecast import PUBLISHED_FILE, SUMMARY_FILE, ForecastSummary
from perphd.domain.job import EndedJob
from perphd.domain.reading import Unavailable
from perphd.domain.wire import WireError, from_json

PERIOD_S: Final = 60.0
PHASE_S: Final = 8.0
"""Seconds after the full minute at which the worker is updated. The store then has all samples of the last window."""
RESTART: Final = BackoffRule(60.0, 3600.0)
STEADY_S: Final = 1800.0
"""Seconds that a worker must have run for its end to reset the restart backoff."""
SAVES_WITHIN_S: Final = 5.0
"""Seconds that the worker has to save its state when the daemon stops."""
PIPE_BYTES: Final = 1 << 20
COMMAND: Final = (sys.executable, "-P", "-m", "perphd.control.forecast_worker")
"""The worker's command; it imports nothing from the working directory."""
LIMITS: Final = ("cpu_max_cores", "memory_max_bytes", "memory_high_bytes")
_LOOK_S: Final = 0.02
FORECASTS_OFF: Final = (
    "no forecast worker is running: set enabled = true in [forecast] and in [store], and restart perphd; "
    "a simulated host has none"
)
_NOTHING: Final = Unavailable(
    "the forecast worker has published nothing yet; its first cycle takes about a minute, "
    "and a forecast needs an hour of samples"
)

Listed: TypeAlias = tuple[str, str, int, tuple[str, ...], int, str]
"""A workload: name, cgroup, minimum memory (bytes), the limits that perphd has set on it, reserved memory (bytes),
and the name by which other hosts know it."""


@dataclass(frozen=True, slots=True)
class Message:
    """An update for the worker: present workloads, ended jobs, and the host's capacity by reading."""

    workloads: Sequence[Listed]
    jobs: Sequence[EndedJob] = ()
    most: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> bytes:
        """The message as one line of JSON."""
        jobs = [asdict(job) for job in self.jobs]
        data = {"workloads": self.workloads, "jobs": jobs, "most": self.most}
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"


class ForecastProcess:
    """The forecast worker; see the module.

    Args:
        folder: the worker's files.
        arguments: the worker's arguments: store, folder, node, root, rows of history, reader of contributions.
        records: receives problems.
        command: the worker: program and arguments.
        wall_clock: the worker gets its update at ``PHASE_S`` of every minute of this clock; None: every ``PERIOD_S``.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        records: Records,
        command: Sequence[str] = COMMAND,
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._folder, self._records = folder, records
        self._command = (*command, *arguments)
        self._starting: Future[int] | None = None
        self._pid: int | None = None
        self._pipe: int | None = None
        self._unsent = b""
        self._wall_clock = wall_clock
        self._started_s = self._told_s = -float("inf")
        self._tell_s = -float("inf")
        self._restart = RetryPause(RESTART)
        self._closed = False

    def step(self, now_s: float, message: Callable[[], Message]) -> None:
        """Call once per tick. Never waits, never raises. ``message``: creates the update when it is due."""
        if self._closed:
            return
        if self._pid is None and self._starting is None:
            if now_s >= self._restart.until_s:
                self._start(now_s)
            return
        if self._starting is not None:
            if not self._starting.done():
                return
            starting, self._starting = self._starting, None
            try:
                self._pid = starting.result()
            except OSError as exc:
                self._failed(now_s, f"it cannot be started: {exc.strerror}: {self._command[0]}")
                return
        if self._has_ended(now_s):
            return
        if now_s >= self._tell_s and not self._unsent:
            self._told_s, self._tell_s = now_s, now_s + self._pause_to_tell_s()
            if now_s - self._started_s >= PERIOD_S:  # the worker has completed a cycle
                self._records.problem("forecast", None, now_s)
            self._unsent = message().line()
        self._send()

    def summary(self) -> ForecastSummary | Unavailable:
        """Summary of the worker's last cycle."""
        try:
            return from_json((self._folder / SUMMARY_FILE).read_text(encoding="utf-8"), ForecastSummary)
        except FileNotFoundError:
            return _NOTHING
        except (OSError, ValueError, WireError) as exc:
            return Unavailable(f"{self._folder / SUMMARY_FILE} cannot be read: {exc}")

    def published(self) -> bytes | Unavailable:
        """The worker's latest publication, as JSON."""
        try:
            return (self._folder / PUBLISHED_FILE).read_bytes()
        except FileNotFoundError:
            return _NOTHING
        except OSError as exc:
            return Unavailable(f"{self._folder / PUBLISHED_FILE} cannot be read: {exc.strerror}")

    def origins(self, workload: str) -> tuple[ForecastOrigin, ...]:
        """The origins of this workload's forecasts: the hosts from whose scores they started."""
        from perphd.agent.forecast_scores import read_origins

        return read_origins(self._folder).get(workload, ())

    def close(self) -> None:
        """End the worker. It saves its state; if that takes too long, it is killed."""
        self._closed = True
        if self._starting is not None:
            with contextlib.suppress(OSError):
                self._pid = self._starting.result()
        self._close_pipe()
        if self._pid is None:
            return
        until = time.monotonic() + SAVES_WITHIN_S
        while self._reaped() is None:
            if time.monotonic() >= until:
                os.kill(self._pid, signal.SIGKILL)  # it is not reaped yet, so its process id is still valid
                os.waitpid(self._pid, 0)
                break
            time.sleep(_LOOK_S)
        self._pid = None

    def _start(self, now_s: float) -> None:
        self._started_s, self._unsent = now_s, b""
        self._told_s = self._tell_s = -float("inf")
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            reading, self._pipe = os.pipe2(os.O_CLOEXEC)
        except OSError as exc:
            self._failed(now_s, f"it cannot be started: {exc.strerror}: {self._folder}")
            return
        os.set_blocking(self._pipe, False)
        # beyond the user's limit on pipes, the rest is sent in the next tick
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        future: Future[int] = Future()
        try:
            # Thread.start() would wait until the kernel has run the new thread once, which takes long on a
            # busy host.
            _thread.start_new_thread(self._spawn, (future, reading))
        except RuntimeError as exc:  # for example because of TasksMax= of the service
            os.close(reading)
            self._failed(now_s, f"it cannot be started: {exc}")
            return
        self._starting = future

    def _pause_to_tell_s(self) -> float:
        """Seconds until the worker's next update."""
        if self._wall_clock is None:
            return PERIOD_S
        left_s = (PHASE_S - self._wall_clock()) % PERIOD_S
        return left_s if left_s >= PERIOD_S / 2 else left_s + PERIOD_S

    def _spawn(self, future: Future[int], reading: int) -> None:
        """Start the worker in a thread, because the child's exec(2) may have to wait for a processor."""
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
        }
        environment.pop("NOTIFY_SOCKET", None)
        try:
            with open(os.devnull, "wb") as nowhere:
                future.set_result(spawn.start(self._command, environment, (reading, nowhere.fileno(), 2)))
        except BaseException as exc:  # passed on to the loop
            future.set_exception(exc if isinstance(exc, OSError) else OSError(0, repr(exc)))
        finally:
            os.close(reading)

    def _has_ended(self, now_s: float) -> bool:
        ended = self._reaped()
        if ended is None:
            return False
        self._pid = None
        self._failed(now_s, f"it ended with {ended}; the log says why")
        return True

    def _reaped(self) -> str | None:
        """The worker's exit in words; None while it runs."""
        assert self._pid is not None
        try:
            found, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return "an unknown status"
        return f"status {os.waitstatus_to_exitcode(status)}" if found else None

    def _failed(self, now_s: float, why: str) -> None:
        self._close_pipe()
        if now_s - self._started_s >= STEADY_S:
            self._restart.succeeded()
        self._restart.failed(now_s)
        text = f"no forecasts: {why}; the worker will be restarted in {self._restart.pause_s:.0f} s"
        self._records.problem("forecast", text, now_s)

    def _send(self) -> None:
        if not self._unsent or self._pipe is None:
            return
        try:
            sent = os.write(self._pipe, self._unsent)
        except BlockingIOError:
            return
        except OSError:  # the worker has ended: the next step notices
            self._unsent = b""
            return
        self._unsent = self._unsent[sent:]

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def set_limits(settings: Settings) -> tuple[str, ...]:
    """The limits set by perphd itself, which are not reservations."""
    return tuple(name for name in LIMITS if getattr(settings, name) is not KEEP)
