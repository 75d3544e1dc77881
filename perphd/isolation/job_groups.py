"""Runs batch jobs as processes in control groups, on hosts without systemd.

A job has one group in every hierarchy, below ``/perphd-jobs`` or, for silver, ``/perphd-jobs-silver``. perphd creates
and removes these groups. ``job_launcher`` starts the job's process and records its end in the state directory, where a
later daemon finds it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perphd.batch.job import QueuedJob, UnitEvidence, attempt_of
from perphd.batch.runner import StartFailed, UnitState
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.isolation.job_launcher import start_ticks
from perphd.qos.band_settings import copper_ceiling
from perphd.qos.bands import IO_WEIGHT_COPPER, OOM_SCORE_COPPER, QosBand

LAUNCHER: Final = Path(__file__).with_name("job_launcher.py")
COPPER_PARENT: Final = "/perphd-jobs"
SILVER_PARENT: Final = "/perphd-jobs-silver"
_V2_CONTROLLERS: Final = ("cpu", "cpuset", "io", "memory", "pids")
LEAST: Final[Mapping[tuple[str, int], tuple[tuple[str, str], ...]]] = {
    ("cpu", 1): (("cpu.shares", "2"),),
    ("cpu", 2): (("cpu.weight", "1"), ("cpu.idle", "1")),
    ("io", 1): (("blkio.bfq.weight", str(IO_WEIGHT_COPPER)),),
    ("io", 2): (
        ("io.weight", f"default {IO_WEIGHT_COPPER}"),
        ("io.bfq.weight", f"default {IO_WEIGHT_COPPER}"),
    ),
}
"""Settings of copper's parent group, by controller and cgroup version. Files that this kernel lacks are skipped."""
PATIENCE_S: Final = 20.0
"""Time limit for a launcher to begin."""
ANSWER_S: Final = 1.0
"""Time limit for the answer of a launcher that has begun. A slower one is left running: its job waits for its directory
or its output, such as a pipe that nobody reads, and its records show how the job ended.
"""
_KILL_ROUNDS: Final = 20


class JobGroups:
    """The ``JobRunner`` for hosts without systemd.

    ``folder``: where launchers keep their records. ``host_memory_bytes``: bounds copper's memory; 0 if unknown.
    """

    def __init__(self, hierarchies: Hierarchies, folder: Path, boot: str, host_memory_bytes: int = 0) -> None:
        self._hierarchies, self._folder, self._boot = hierarchies, folder, boot
        self._host_memory_bytes = host_memory_bytes
        self._launchers: list[subprocess.Popen[str]] = []

    def make_group(self, job: QueuedJob) -> str:
        """See ``JobRunner``."""
        return self._prepared(job)[0]

    def start(self, job: QueuedJob, log: str) -> str:
        """See ``JobRunner``."""
        spec = job.spec
        cgroup, procs = self._prepared(job)
        asked = {
            "folder": str(self._folder),
            "unit": job.unit,
            "boot": self._boot,
            "procs": procs,
            "oom_score_adj": OOM_SCORE_COPPER if spec.band is QosBand.COPPER else 0,
            "log": log,
            "uid": spec.uid,
            "gid": spec.gid,
            "groups": list(spec.groups),
            "directory": spec.directory,
            "output": spec.output,
            "environment": list(spec.environment),
            "command": list(spec.command),
        }
        answer = self._launched(json.dumps(asked), job.unit)
        if answer not in ("started", "exists") and not self._record(job.unit, "started"):
            self._remove(cgroup)
            raise StartFailed(f"{job.unit}: the launcher did not start: {answer or 'no answer'}")
        return cgroup

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        """See ``JobRunner``."""
        self._launchers = [each for each in self._launchers if each.poll() is None]
        return {job.id: self._state(job) for job in jobs}

    def stop(self, unit: str) -> bool:
        """See ``JobRunner``."""
        for parent in (COPPER_PARENT, SILVER_PARENT):
            cgroup = f"{parent}/{unit}"
            if not self._emptied(cgroup):
                return False
            self._remove_below(cgroup)
            if not self._remove(cgroup):
                return False
            self._remove(parent)  # the kernel refuses while the parent holds other jobs
        started = self._record(unit, "started")
        if started and not self._record(unit, "ended") and self._alive(started):
            return False  # the launcher is about to record the end
        for record in ("ended", "started"):
            (self._folder / f"{unit}.{record}").unlink(missing_ok=True)
        return True

    def units(self) -> tuple[str, ...]:
        """See ``JobRunner``."""
        found = {name.rpartition(".")[0] for name in self._names(str(self._folder))}
        for hierarchy in self._hierarchies.all():
            for parent in (COPPER_PARENT, SILVER_PARENT):
                found |= self._names(hierarchy.path(parent))
        return tuple(sorted(unit for unit in found if attempt_of(unit) is not None))

    def _prepared(self, job: QueuedJob) -> tuple[str, list[str]]:
        """The job's group and the files through which a process enters it. Raises StartFailed."""
        spec = job.spec
        parent = COPPER_PARENT if spec.band is QosBand.COPPER else SILVER_PARENT
        cgroup = f"{parent}/{job.unit}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cgroup, self._groups(parent, cgroup, spec.memory_bytes if spec.limited else None)
        except OSError as exc:
            self._remove(cgroup)
            raise StartFailed(
                f"{exc.filename}: {exc.strerror}: cannot create a control group for jobs"
            ) from exc

    def _launched(self, asked: str, unit: str) -> str:
        """Start a launcher and return the first line of its answer; ``started`` if it has begun and does not answer."""
        try:
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError as exc:
            return str(exc)
        self._launchers.append(launcher)
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        with contextlib.suppress(OSError), launcher.stdin as pipe:
            pipe.write(asked)
        with launcher.stdout as pipe:
            answers = select.poll()  # select() refuses descriptors above 1023
            answers.register(pipe, select.POLLIN)
            for _ in range(math.ceil(PATIENCE_S / ANSWER_S)):
                if answers.poll(1000.0 * ANSWER_S):
                    return pipe.readline().strip()
                if self._record(unit, "started"):
                    return "started"
            launcher.kill()  # it must not begin later, when the job counts as not started
            launcher.wait()
        return f"no answer within {PATIENCE_S:g} s"

    def _state(self, job: QueuedJob) -> UnitState:
        cgroup = f"{COPPER_PARENT if job.spec.band is QosBand.COPPER else SILVER_PARENT}/{job.unit}"
        ended = self._record(job.unit, "ended")
        if ended:
            return UnitState(UnitEvidence.ENDED, int(ended["status"]), cgroup, str(ended["reason"]))
        started = self._record(job.unit, "started")
        if not started:
            return UnitState(UnitEvidence.NEVER_STARTED, cgroup=cgroup)
        if self._alive(started) or self._pids(cgroup):
            return UnitState(UnitEvidence.RUNS, cgroup=cgroup)
        ended = self._record(job.unit, "ended")  # it may have ended since the first read
        if ended:
            return UnitState(UnitEvidence.ENDED, int(ended["status"]), cgroup, str(ended["reason"]))
        return UnitState(UnitEvidence.UNKNOWN, cgroup=cgroup)

    def _alive(self, started: Mapping[str, Any]) -> bool:
        return bool(started["boot"] == self._boot and start_ticks(started["pid"]) == started["start"])

    def _record(self, unit: str, what: str) -> dict[str, Any]:
        """A launcher's record; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads((self._folder / f"{unit}.{what}").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    # -- control groups -----------------------------------------------------------------------------------------

    def _groups(self, parent: str, cgroup: str, most_bytes: int | None) -> list[str]:
        """Create the job's groups; returns the files through which a process enters them."""
        procs = []
        for hierarchy in self._hierarchies.all():
            if not os.path.isdir(hierarchy.path(parent)):
                _make(hierarchy, parent)
                if parent == COPPER_PARENT:
                    self._make_least(hierarchy)
            _make(hierarchy, cgroup)
            if hierarchy.version == 2 and parent == COPPER_PARENT:
                _try_write(hierarchy.path(cgroup, "memory.oom.group"), "1")
            if most_bytes is not None and self._hierarchies.of("memory") is hierarchy:
                file = "memory.limit_in_bytes" if hierarchy.version == 1 else "memory.max"
                Path(hierarchy.path(cgroup, file)).write_text(str(most_bytes))
            procs.append(hierarchy.path(cgroup, "cgroup.procs"))
        if not procs:
            raise OSError(errno.ENODEV, "no cgroup hierarchy is mounted", "/sys/fs/cgroup")
        return procs

    def _make_least(self, hierarchy: Hierarchy) -> None:
        """Give copper's parent group the lowest weights, and a bound on the memory of all copper jobs together."""
        for (controller, version), settings in LEAST.items():
            if version == hierarchy.version and self._hierarchies.of(controller) is hierarchy:
                for file, value in settings:
                    _try_write(hierarchy.path(COPPER_PARENT, file), value)
        if hierarchy.version == 2 and self._host_memory_bytes:
            ceiling = str(copper_ceiling(self._host_memory_bytes))
            _try_write(hierarchy.path(COPPER_PARENT, "memory.high"), ceiling)

    def _emptied(self, cgroup: str) -> bool:
        """Kill every process of the group, frozen ones included; True if none is left."""
        for hierarchy in self._hierarchies.all():
            for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if os.path.exists(hierarchy.path(cgroup, file)):
                    _try_write(hierarchy.path(cgroup, file), value)
        for _ in range(_KILL_ROUNDS):
            pids = self._pids(cgroup)
            if not pids:
                return True
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        return False

    def _pids(self, cgroup: str) -> set[int]:
        """Process ids of the group and of its descendants."""
        found: set[int] = set()
        for hierarchy in self._hierarchies.all():
            for folder, _, _ in os.walk(hierarchy.path(cgroup)):
                with contextlib.suppress(OSError):
                    found |= {int(line) for line in Path(folder, "cgroup.procs").read_text().split()}
        return found - {0}

    def _remove(self, cgroup: str) -> bool:
        """Remove the group in all hierarchies; True if nothing is left."""
        gone = True
        for hierarchy in self._hierarchies.all():
            try:
                os.rmdir(hierarchy.path(cgroup))
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone

    def _remove_below(self, cgroup: str) -> None:
        """Remove the groups that the job created inside its own."""
        for hierarchy in self._hierarchies.all():
            for folder, _, _ in os.walk(hierarchy.path(cgroup), topdown=False):
                if folder != hierarchy.path(cgroup):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)

    @staticmethod
    def _names(folder: str) -> set[str]:
        try:
            return set(os.listdir(folder))
        except OSError:
            return set()


def _make(hierarchy: Hierarchy, cgroup: str) -> None:
    """Create one group. On v1 copy the parent's cpuset; on v2 enable the parent's controllers."""
    above = cgroup.rpartition("/")[0] or "/"
    if hierarchy.version == 2:
        for controller in _V2_CONTROLLERS:
            if controller in hierarchy.controllers:
                _try_write(hierarchy.path(above, "cgroup.subtree_control"), f"+{controller}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(hierarchy.path(cgroup))
    if hierarchy.version == 1 and "cpuset" in hierarchy.controllers:
        for file in ("cpuset.cpus", "cpuset.mems"):
            target = Path(hierarchy.path(cgroup, file))
            if not target.read_text().strip():
                target.write_text(Path(hierarchy.path(above, file)).read_text())


def _try_write(path: str, value: str) -> None:
    """Write a value that this host may not support, such as an idle class or an undelegated controller."""
    with contextlib.suppress(OSError):
        Path(path).write_text(value)
