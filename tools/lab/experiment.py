"""One run: one load, one batch job, one scheme, one repetition."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.lab import batch as jobs
from tools.lab import groups as g
from tools.lab.batch import JOBS, Batch, Programs
from tools.lab.catalogue import LOADS, SERVERS, Cell
from tools.lab.daemon import Daemon
from tools.lab.groups import Groups
from tools.lab.load import Load, Running, Second
from tools.lab.processes import Ledger
from tools.lab.records import UNSETTLED_S, Run, timeline, whole_cycles, window
from tools.lab.schemes import Scheme, sli
from tools.lab.servers.seam import Place, Server
from tools.lab.usage import Usage
from tools.lab.watch import Setting, Watcher


@dataclass(frozen=True, slots=True)
class Timing:
    """Length of each part of a run in seconds. ``learn``: the load alone, observed by perphd."""

    warm: float = 4.0
    learn: float = 15.0
    window: float = 25.0

    def warm_s(self, load: Load) -> float:
        """Seconds before anything counts."""
        return max(self.warm, load.warm_s)

    def learn_s(self, load: Load) -> float:
        """Seconds in which perphd sees the load alone, doubled for loads with long events."""
        return 2 * self.learn if load.slow else self.learn

    def window_s(self, load: Load) -> float:
        """Measured seconds, doubled for loads with long events."""
        return 2 * self.window if load.slow else self.window

    def of(self, load: Load, scheme: Scheme) -> float:
        """Length of one run."""
        return self.warm_s(load) + (self.learn_s(load) if scheme.daemon else 0.0) + self.window_s(load)


class Bench:
    """The groups, the batch programs, and one server at a time, which stays while its loads run.

    ``folder`` (programs, logs, the daemon's state) and ``data`` (servers' data, batch counters; in memory if possible)
    are removed at the end; ``keep`` receives the daemon's files of every run.
    """

    def __init__(
        self,
        ledger: Ledger,
        groups: Groups,
        folder: Path,
        data: Path,
        timing: Timing,
        keep: Path,
        scale: int = 1,
    ) -> None:
        self.ledger, self.groups, self.folder, self.timing = ledger, groups, folder, timing
        self._data, self._keep, self._scale = data, keep, scale
        self.programs = Programs(folder)
        self._serving: tuple[str, Server, Path] | None = None

    def server(self, load: Load) -> Server:
        """The server of a load, with the load's data; a previous server is ended.

        Raises:
            Unavailable: this machine lacks a program or feature that the server needs.
        """
        if self._serving is None or self._serving[0] != load.server:
            self.end_server()
            self.groups.reset()  # a server that warms up does so undisturbed by the last run's scheme
            data = Path(tempfile.mkdtemp(prefix=f"{load.server}-", dir=self._data))
            os.chmod(self._data, 0o711)  # servers run under their own user accounts
            where = self.groups.directories(g.LRA)
            place = Place(self.ledger, self.folder, data, where, self._scale)
            self._serving = load.server, SERVERS[load.server](place), data
        self._serving[1].prepare(load)
        return self._serving[1]

    def end_server(self) -> None:
        """End the server that runs, and remove its data."""
        if self._serving is not None:
            _, server, data = self._serving
            self._serving = None
            server.stop()
            shutil.rmtree(data, ignore_errors=True)

    def run(self, cell: Cell, scheme: Scheme, repetition: int, attempt: int = 0) -> Run:
        """One run, from groups at their defaults to groups at their defaults.

        Raises:
            LabError: the load or the batch job ended by itself, or the server cannot run here.
        """
        groups, timing, load = self.groups, self.timing, LOADS[cell.load]
        server = self.server(load)
        groups.reset()
        for pid in server.pids:
            with contextlib.suppress(ProcessLookupError):
                groups.enter(scheme.lra_group, pid)
        scheme.prepare(groups)
        with ExitStack() as stack:
            running = server.start(load, groups.directories(g.CLIENT))
            stack.callback(running.stop)
            records = _Recorder(running)
            records.until(time.monotonic() + timing.warm_s(load))
            watcher = stack.enter_context(Watcher(groups, [g.LRA, g.BATCH]))
            daemon: Daemon | None = None
            if scheme.daemon:
                daemon = Daemon(
                    self.ledger,
                    self.folder,
                    load.server,
                    sli(scheme, server.sli()),
                    groups.directories(g.CLIENT),
                    self._keep / f"{cell.name}-{scheme.name}-{repetition + 1}",
                    scheme.tolerance_pct,
                    scheme.policy,
                )
                stack.callback(daemon.stop)
                records.until(time.monotonic() + timing.learn_s(load))

            begin_s = time.monotonic()
            usage = Usage(groups)
            batch: Batch | None = None
            if scheme.with_batch:
                where = groups.directories(scheme.batch_group)
                batch = jobs.start(
                    self.ledger, JOBS[cell.job], self.programs, self._data, self.folder, where, self._scale
                )
                stack.callback(batch.stop)
            seconds, counts = records.until(begin_s + timing.window_s(load), batch, load.cycle)
            cores, client_stalled = usage.cores(scheme.one_group), usage.client_stalled()
            if daemon is not None:
                daemon.stop()
            points = timeline(seconds, counts, begin_s)
            return Run(
                cell=cell.name,
                scheme=scheme.name,
                repetition=repetition,
                attempt=attempt,
                whole=window(seconds, points, cycle=load.cycle),
                settled=window(seconds, points, after_s=UNSETTLED_S, cycle=load.cycle),
                timeline=points,
                settings=tuple(_relative(setting, begin_s) for setting in watcher.seen),
                notes=daemon.notes(begin_s) if daemon is not None else (),
                cores=cores,
                client_stalled=client_stalled,
                daemon_problem=daemon.problem() if daemon is not None else "",
            )


class _Recorder:
    """Collects a load's records as they arrive."""

    def __init__(self, load: Running) -> None:
        self._records = iter(load)

    def until(
        self, at_s: float, batch: Batch | None = None, cycle: int = 0
    ) -> tuple[list[Second], list[tuple[float, float]]]:
        """The records until about ``at_s``, and (time, work) of the batch job at each of them.

        For a load with a ``cycle`` it takes up to twice as long, until every client has completed a whole one.
        """
        latest_s = at_s + (at_s - time.monotonic() if cycle else 0.0)
        seconds: list[Second] = []
        counts: list[tuple[float, float]] = []
        while True:
            seconds.append(next(self._records))
            if batch is not None:
                counts.append((time.monotonic(), batch.count()))
            now_s = time.monotonic() + 0.3  # the next record would end nearly a second later
            if now_s > latest_s or (now_s > at_s and _complete(seconds, cycle)):
                return seconds, counts


def _complete(seconds: Sequence[Second], cycle: int) -> bool:
    """True unless some client has yet to complete a whole cycle after the window's first seconds."""
    after = [end for second in seconds[round(UNSETTLED_S) + 1 :] for end in second.ends]
    return cycle == 0 or whole_cycles(after, cycle) is not None


def _relative(setting: Setting, begin_s: float) -> tuple[float, str, dict[str, str]]:
    return (round(setting.at_s - begin_s, 2), setting.group.rpartition("/")[2], setting.knobs)
