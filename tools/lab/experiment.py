"""One run: one load, one batch job, one scheme, one repetition."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.lab import groups as g
from tools.lab.batch import JOBS, Batch, Programs
from tools.lab.daemon import Daemon
from tools.lab.groups import Groups
from tools.lab.load import LOADS, Load, Mysqlslap, Second, Sysbench
from tools.lab.mariadb import Server
from tools.lab.processes import Ledger
from tools.lab.records import UNSETTLED_S, Run, timeline, window
from tools.lab.schemes import Scheme
from tools.lab.usage import Usage
from tools.lab.watch import Setting, Watcher


@dataclass(frozen=True, slots=True)
class Cell:
    """A load and a batch job, e.g. ``closed-pi4``."""

    load: str
    job: str

    @property
    def name(self) -> str:
        """Its name in options and reports."""
        return f"{self.load}-{self.job}"


CELLS = (
    Cell("closed", "pi4"),
    Cell("open", "pi4"),
    Cell("closed", "stream2"),
    Cell("open", "stream2"),
    Cell("slap", "pi4"),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part of a run takes, in seconds. ``learn``: the load alone under perphd's eyes."""

    warm: float = 4.0
    learn: float = 15.0
    window: float = 25.0

    def of(self, scheme: Scheme) -> float:
        """Length of one run."""
        return self.warm + (self.learn if scheme.daemon else 0.0) + self.window


class Bench:
    """The server, the groups and the batch programs that all runs share.

    ``folder`` (programs, the daemon's state) and ``data`` (the database, the batch jobs' counters; in memory, if
    possible) are removed at the end; ``keep`` gets what the daemon leaves of every run.
    """

    def __init__(
        self, ledger: Ledger, groups: Groups, folder: Path, data: Path, timing: Timing, keep: Path
    ) -> None:
        self.ledger, self.groups, self.folder, self.timing = ledger, groups, folder, timing
        self._data = data
        self._keep = keep
        self.programs = Programs(folder)
        self.server = Server(ledger, data, groups.directories(g.LRA))
        self.server.load_tables()

    def run(self, cell: Cell, scheme: Scheme, repetition: int, attempt: int = 0) -> Run:
        """One run, from groups at their defaults to groups at their defaults.

        Raises:
            LabError: the load or the batch job ended by itself.
        """
        groups, timing = self.groups, self.timing
        groups.reset()
        groups.enter(scheme.lra_group, self.server.pid)
        scheme.prepare(groups)
        with ExitStack() as stack:
            load = self._load(LOADS[cell.load])
            stack.callback(load.stop)
            records = _Recorder(load)
            records.until(time.monotonic() + timing.warm)
            watcher = stack.enter_context(Watcher(groups, [g.LRA, g.BATCH]))
            daemon: Daemon | None = None
            if scheme.daemon:
                keep = self._keep / f"{cell.name}-{scheme.name}-{repetition + 1}"
                daemon = Daemon(
                    self.ledger,
                    self.folder,
                    self.server,
                    groups.directories(g.CLIENT),
                    keep,
                    scheme.tolerance_pct,
                )
                stack.callback(daemon.stop)
                records.until(time.monotonic() + timing.learn)

            begin_s = time.monotonic()
            usage = Usage(groups)
            batch: Batch | None = None
            if scheme.with_batch:
                where = groups.directories(scheme.batch_group)
                batch = Batch(self.ledger, JOBS[cell.job], self.programs, self._data, where)
                stack.callback(batch.stop)
            seconds, counts = records.until(begin_s + timing.window, batch)
            cores, client_stalled = usage.cores(scheme.one_group), usage.client_stalled()
            if daemon is not None:
                daemon.stop()
            points = timeline(seconds, counts, begin_s)
            return Run(
                cell=cell.name,
                scheme=scheme.name,
                repetition=repetition,
                attempt=attempt,
                whole=window(seconds, points),
                settled=window(seconds, points, after_s=UNSETTLED_S),
                timeline=points,
                settings=tuple(_relative(setting, begin_s) for setting in watcher.seen),
                notes=daemon.notes(begin_s) if daemon is not None else (),
                cores=cores,
                client_stalled=client_stalled,
                daemon_problem=daemon.problem() if daemon is not None else "",
            )

    def _load(self, load: Load) -> Sysbench | Mysqlslap:
        where = self.groups.directories(g.CLIENT)
        if load.name == "slap":
            return Mysqlslap(self.ledger, self.server, where)
        return Sysbench(self.ledger, self.server, load, where)


class _Recorder:
    """Takes a load's records as they come."""

    def __init__(self, load: Sysbench | Mysqlslap) -> None:
        self._records = iter(load)

    def until(
        self, at_s: float, batch: Batch | None = None
    ) -> tuple[list[Second], list[tuple[float, float]]]:
        """The records until about ``at_s``, and (time, work) of the batch job at each of them."""
        seconds: list[Second] = []
        counts: list[tuple[float, float]] = []
        while True:
            seconds.append(next(self._records))
            if batch is not None:
                counts.append((time.monotonic(), batch.count()))
            if time.monotonic() > at_s - 0.3:  # the next one would end nearly a second later
                return seconds, counts


def _relative(setting: Setting, begin_s: float) -> tuple[float, str, dict[str, str]]:
    return (round(setting.at_s - begin_s, 2), setting.group.rpartition("/")[2], setting.knobs)
