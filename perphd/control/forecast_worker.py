"""The forecast worker: ``python -m perphd.control.forecast_worker STORE FOLDER NODE [ROOT [HISTORY_ROWS [READER]]]``.

The daemon starts it, and once a minute writes one line to its standard input: the present workloads and the
ended jobs. For each line, the worker reads the store's new windows, advances every forecast, replaces the
published files and records the jobs in the history. It saves its state and ends when its standard input ends, even if
the daemon is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perphd.control import forecast_files as files
from perphd.control.forecast_cycle import FIRST_S, Costs, Cycles
from perphd.control.forecast_files import FileRefused, Known
from perphd.control.own_limits import reserved
from perphd.control.recorded_jobs import RecordedJobs
from perphd.domain.errors import KernelError, ParseError, PerphError
from perphd.domain.job import HISTORY_FILE, EndedJob
from perphd.domain.reading import Reading, Unavailable
from perphd.forecast.usage_profile import UsageProfile, merged
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from perphd.monitor.query import QueryError
from perphd.monitor.windows import read_windows
from perphd.sizing.shaper import Resource

if TYPE_CHECKING:
    from perphd.control.forecast_exchange import Exchange

log = logging.getLogger("perphd.forecast")

NICENESS: Final = 19
OOM_SCORE: Final = 500
"""OOM score adjustment of the worker. Otherwise it would inherit the daemon's, which protects almost fully."""
SAVE_EVERY_S: Final = 1800.0
"""Seconds between saves. A killed worker loses nothing: the next one reads the store again."""
READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Listed:
    """A workload as the daemon lists it for the worker.

    ``own``: names of the limits (fields of ``Settings``; see ``forecasts.LIMITS``) that perphd has set.
    ``declared_bytes``: reserved memory, 0 if undeclared. ``application``: the name by which other hosts know the
    workload; empty if it is the same name.
    """

    name: str
    cgroup: str
    least_memory_bytes: int
    own: frozenset[str]
    declared_bytes: int = 0
    application: str = ""


def parse(lines: Sequence[bytes]) -> tuple[list[Listed], list[EndedJob], dict[str, float]]:
    """The workloads and host capacity of the last line, and the jobs of all lines.

    Raises:
        ValueError, TypeError, KeyError: a line has another format.
    """
    found = [json.loads(line) for line in lines]
    listed = [
        Listed(
            str(name),
            str(cgroup),
            int(least),
            frozenset(map(str, own)),
            int(declared),
            *map(str, application),
        )
        for name, cgroup, least, own, declared, *application in found[-1]["workloads"]
    ]
    jobs = [EndedJob(**{**job, "argv": tuple(job["argv"])}) for message in found for job in message["jobs"]]
    return listed, jobs, {str(name): float(amount) for name, amount in found[-1]["most"].items()}


class ForecastWorker:
    """Runs cycles on this store and keeps its files in this folder."""

    def __init__(
        self, store: Path, folder: Path, node: str, root: str = "", history_rows: int = 0, reader: str = ""
    ) -> None:
        self._store, self._folder = store, folder
        self._exchange = _exchange(reader, folder)
        self._jobs = RecordedJobs(folder.parent / HISTORY_FILE, history_rows)
        self._fs = RealFs(root)
        self._groups = Cgroups(self._fs, discover(self._fs))
        self._costs = Costs()
        self._saved_s = time.time()
        self._imported: tuple[object, ...] = ()
        try:
            known = files.load_state(folder)
        except FileRefused as exc:
            log.warning("%s", exc)
            known = Known()
        self._cycles = Cycles(known, self._profile(folder), node)
        self._published = self._cycles.profile

    def cycle(
        self, roster: Sequence[Listed], jobs: Sequence[EndedJob] = (), most: Mapping[str, float] | None = None
    ) -> None:
        """Run one cycle: read the store, forecast, publish, and record ended jobs.

        A failure to read or record is published as a problem.
        """
        self._cycles.most = most or {}
        names = [each.name for each in roster]
        now_s = time.time()
        found_s: Reading = Unavailable("not read")
        problem, amounts = "", self._reserved(roster)
        try:
            found = read_windows(self._store, FIRST_S, after=self._cycles.number)
            found_s = found.newest_s
            if self._exchange is not None:
                known_as = {each.name: each.application or each.name for each in roster}
                self._cycles.priors = self._exchange.priors(self._cycles.young(names), now_s, known_as)
            self._cycles.take(found, names, amounts)
        except (QueryError, OSError) as exc:
            problem = f"no new windows: {exc}"
        self._merge_imported()
        problem = "; ".join(filter(None, (problem, self._jobs.record(jobs, now_s))))
        self._costs.points.append((time.time(), time.process_time()))
        forecasts = self._cycles.forecasts(names, amounts, now_s, found_s, self._costs, _rss_bytes(), problem)
        files.publish(self._folder, forecasts, self._cycles.memory(names))
        if now_s - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Save the state, the scores for other hosts, and the usage profile. Raises OSError if that fails."""
        self._saved_s = time.time()
        self._jobs.prune()
        files.save_state(self._folder, self._cycles.known)
        if self._exchange is not None:
            self._exchange.hand_over(self._cycles.known.series)
        if self._cycles.profile is not self._published:
            files.write_profile(self._folder / files.PROFILE, self._cycles.profile)
            self._published = self._cycles.profile

    def _reserved(self, roster: Sequence[Listed]) -> Mapping[str, Mapping[Resource, Reading]]:
        found = {}
        for each in roster:
            try:
                group = self._groups.group(each.cgroup) if each.cgroup else None
            except (KernelError, ParseError):
                group = None
            found[each.name] = {
                kind: reserved(
                    self._fs, group, each.least_memory_bytes, each.own, kind, each.declared_bytes
                ).amount
                for kind in Resource
            }
        return found

    def _profile(self, folder: Path) -> UsageProfile:
        path = folder / files.PROFILE
        try:
            return files.read_profile(path) if path.exists() else UsageProfile()
        except FileRefused as exc:
            log.warning("%s; usage profiles restart", exc)
            return UsageProfile()

    def _merge_imported(self) -> None:
        """Merge profiles of other nodes. Merging the same profile twice changes nothing."""
        folder = self._folder / files.IMPORTED
        try:
            paths = sorted(folder.glob("*.json"))
            seen = tuple((str(path), path.stat().st_mtime_ns) for path in paths)
        except OSError:
            return
        if seen == self._imported:
            return
        self._imported = seen
        for path in paths:
            try:
                self._cycles.profile = merged((self._cycles.profile, files.read_profile(path)))
            except FileRefused as exc:
                log.warning("%s", exc)


def lines_of(descriptor: int, pending: bytes = b"") -> tuple[list[bytes], bytes]:
    """Read from the descriptor until there is a complete line.

    Returns the complete lines and the remainder. At the end of the input, it returns no lines.
    """
    while True:
        *whole, pending = pending.split(b"\n")
        if whole:
            return whole, pending
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return [], b""
        pending += data


def main(arguments: Sequence[str]) -> int:
    """Run until standard input ends. Raises PerphError for an invalid READER, OSError if a file cannot be written."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO)
    # systemd signals all processes of a service, but this one ends with its input.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")  # so that the worker keeps no file system in use
    give_way()
    store, folder, node, root, rows, reader = (*arguments, *("", "0", "")[len(arguments) - 3 :])
    worker = ForecastWorker(Path(store), Path(folder), node, root, int(rows), reader)
    pending = b""
    while True:
        lines, pending = lines_of(0, pending)
        if not lines:
            worker.save()
            return 0
        worker.cycle(*parse(lines))


def _exchange(reader: str, folder: Path) -> Exchange | None:
    """The exchange with other hosts; None without a reader, and then its modules are not loaded."""
    if not reader:
        return None
    from perphd.agent.forecast_scores import reader_from
    from perphd.control.forecast_exchange import Exchange

    return Exchange(reader_from(reader), folder)


def give_way() -> None:
    """Lower the process's priority, and let the kernel kill it before the daemon if memory runs out."""
    with contextlib.suppress(OSError):  # a service's system call filter may refuse this
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{OOM_SCORE}\n")


def _rss_bytes() -> Reading:
    try:
        return float(int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE)
    except (OSError, ValueError, IndexError) as exc:
        return Unavailable(f"/proc/self/statm cannot be read: {exc}")


def run(arguments: Sequence[str]) -> int:
    """``main``, reporting failures in one line."""
    try:
        return main(arguments)
    except (PerphError, OSError) as exc:
        log.error("forecast worker: %s", exc)
        return 1


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
