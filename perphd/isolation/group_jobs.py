"""Changes of resctrl groups: create, fill, empty and remove, each with its rollback.

``engine`` makes the writes, in a thread of its own, because it may wait for a program that holds resctrl's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import rdt
from perphd.domain.backoff import BackoffRule
from perphd.domain.errors import KernelError
from perphd.domain.plan import Key, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS, Value
from perphd.host.resctrl import LockHeld, as_kernel_error, patient, resources
from perphd.isolation.engine import Keep, Result, Undo, make_all
from perphd.isolation.group_watch import GroupWatch, SeenGroup
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.pools import Pool
from perphd.isolation.refusals import Refusals

LOCK_RETRY: Final = BackoffRule(1.0, 8.0)
"""Backoff when another program takes the lock at every try, although each check finds it free."""
Do: TypeAlias = Callable[[Keep], None]
"""Changes a group, and stores the rollback before it does; a change without a rollback stores none."""


@dataclass(frozen=True, slots=True)
class Job:
    """The work that carries out one write of a plan.

    ``keys``: the knobs that it sets. ``values``: their targets, by which refusals are remembered.
    """

    group: str
    keys: tuple[Key, ...]
    values: Mapping[Key, Value]
    do: Do


@dataclass(slots=True)
class _Lock:
    """The last failure to get the lock: reason, time (s, monotonic), and pause in seconds before the next try."""

    reason: str
    at_s: float
    pause_s: float


class GroupJobs:
    """Executes the jobs of the last plan.

    Args:
        note: called with every workload whose group changed.
        lock_wait_s: time that the first job of a run waits for the lock.
    """

    def __init__(
        self,
        cgroups: Cgroups,
        journal: Journal,
        changes: GroupWatch,
        refusals: Refusals,
        note: Callable[[str], None],
        lock_wait_s: float,
    ) -> None:
        self._cgroups, self._journal = cgroups, journal
        self._changes, self._refusals, self._note = changes, refusals, note
        self._lock_wait_s = lock_wait_s
        self._now_s = 0.0
        self._todo: dict[Write, Job] = {}
        self._lock: _Lock | None = None
        self._partly: list[tuple[str, KernelError]] = []
        self._result = Result()
        self._late: set[Key] = set()
        self._met_lock = False
        self.foreign: dict[str, frozenset[int]] = {}
        """Threads of each workload that are in groups of other programs."""

    # -- the list ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Start a new plan."""
        self._todo.clear()
        self._now_s = now_s

    def add(self, write: Write, job: Job) -> None:
        """Assign the job that carries out this write."""
        self._todo[write] = job

    def has(self, write: Write) -> bool:
        """True if the last plan had this write."""
        return (
            bool(self._todo) and write in self._todo
        )  # hashing a write takes longer than the rest of the lookup

    def locked(self, groups: rdt.Groups) -> str:
        """Reason why no write is tried now, with the holder of the lock; empty if a try is due.

        Does not wait for the lock.
        """
        if self._lock is None:
            return ""
        held = groups.resctrl.access.is_locked()
        if held:
            self._lock.reason = (
                f"{groups.resctrl.access.path()}: {held}; perphd retries when the lock is free"
            )
        elif not 0 <= self._now_s - self._lock.at_s < self._lock.pause_s:
            return ""
        return self._lock.reason

    # -- execution -----------------------------------------------------------------------------------------------

    def run(self, writes: Sequence[Write]) -> Result:
        """Make these writes. A failure rolls back the writes of its group; other groups stay changed."""
        result = self._result = Result()
        self._late.clear()
        self._met_lock = False
        make_all(self, writes, result)
        result.through -= self._late
        result.through -= {key for write in result.undone for key in self._todo[write].keys}
        if not self._met_lock:
            self._lock = None
        return result

    def scope(self, write: Write) -> str:
        """The group of this write."""
        return self._todo[write].group

    def hindrance(self, write: Write) -> KernelError | None:
        """None: the first job finds out whether another program holds the lock."""
        return None

    def is_gone(self, write: Write) -> bool:
        """False: groups are perphd's own, so an error about one always counts."""
        return False

    def make(self, write: Write, keep: Keep) -> KernelError | None:
        """Do the job behind this write; returns the refusal of a setting in a group that was otherwise made."""
        job = self._todo[write]
        self._partly = []
        with _kernel_errors():
            job.do(lambda back: keep(lambda: _undone(back)))
        self._result.through |= set(job.keys)
        refused = self._refused_parts(job)
        for key in job.keys:
            if key not in self._late and key in job.values:
                self._refusals.took(key, job.values[key])
        return refused

    def failed(self, write: Write, error: KernelError) -> bool:
        """Remember the refusal. False if another program holds the lock: no other group can be changed either."""
        job = self._todo[write]
        self._late |= set(job.keys)
        if isinstance(error, LockHeld):
            before = 0.0 if self._lock is None else self._lock.pause_s
            self._lock = _Lock(str(error), self._now_s, LOCK_RETRY.after(before))
            self._met_lock = True
            return False
        for key, value in job.values.items():
            self._refusals.failed(key, value, error, self._now_s)
        return True

    def _refused_parts(self, job: Job) -> KernelError | None:
        parts, self._partly = self._partly, []
        for setting, error in parts:
            for key, value in job.values.items():
                if key[1] == setting:
                    self._refusals.failed(key, value, error, self._now_s)
                    self._late.add(key)
        return parts[0][1] if parts else None

    # -- making and filling --------------------------------------------------------------------------------------

    def making(self, groups: rdt.Groups, pool: Pool) -> Do:
        """The job that creates a group or changes its schemata."""
        return lambda keep: self._make(patient(groups, self._lock_wait_s), pool, keep)

    def _make(self, groups: rdt.Groups, pool: Pool, keep: Keep) -> None:
        access = groups.resctrl.access
        group = groups.control(pool.key)
        path = access.path(group.relative)
        known, mount = self._journal.originals.get(path), access.identity()
        if known is None or known.identity != mount:
            self._journal.record([Original(path, b"", mount, RESCTRL_SETTINGS[0], pool.names[0])])
        if groups.resctrl.exists(group):
            before = groups.resctrl.schemata(group)
            keep(lambda: self._back_to(groups, pool.key, path, before))
        else:
            keep(lambda: self._unmake(groups, pool.key, path))
        groups.make(pool.key)
        self._wrote(groups, pool.key, path, self._ensure(groups, group, pool.schemata))

    def _ensure(self, groups: rdt.Groups, group: rdt.GroupRef, wanted: rdt.Schemata) -> rdt.Schemata:
        """Write both settings at once; if the kernel refuses, write each separately."""
        try:
            return groups.ensure(group, wanted).after
        except (rdt.Invalid, rdt.Unsupported):
            refused: list[tuple[str, KernelError]] = []
            for setting in RESCTRL_SETTINGS:
                names = resources(groups.resctrl.info, setting)
                cells = frozenset(cell for cell, _ in wanted.cells() if cell.resource in names)
                try:
                    groups.ensure(group, wanted.only(cells))
                except (rdt.Invalid, rdt.Unsupported) as exc:
                    refused.append((setting, as_kernel_error(exc)))
            if len(refused) != 1:
                raise
            self._partly += refused
            return groups.resctrl.schemata(group)

    def _back_to(self, groups: rdt.Groups, key: str, path: str, before: rdt.Schemata) -> None:
        group = groups.control(key)
        if not groups.resctrl.exists(group):
            return  # another program removed it, and the next plan makes it again
        try:
            groups.ensure(group, before)
        finally:  # values that perphd failed to restore must not count as another program's
            self._wrote(groups, key, path, groups.resctrl.schemata(group))

    def _unmake(self, groups: rdt.Groups, key: str, path: str) -> None:
        if groups.resctrl.exists(groups.control(key)):
            self._remove(groups, key, path)
        else:  # making it failed
            self._forget(key, path)

    def _wrote(self, groups: rdt.Groups, key: str, path: str, schemata: rdt.Schemata) -> None:
        group, resctrl = groups.control(key), groups.resctrl
        seen = SeenGroup(group, path, resctrl.identity(group), schemata, resctrl.tasks(group))
        self._changes.wrote(key, seen)
        for name, home in self._changes.homes().items():
            if home == key:
                self._note(name)

    def filling(self, groups: rdt.Groups, key: str, spec: WorkloadSpec) -> Do:
        """The job that moves a workload's threads into a group."""
        return lambda keep: self._fill(patient(groups, self._lock_wait_s), key, spec, keep)

    def _fill(self, groups: rdt.Groups, key: str, spec: WorkloadSpec, keep: Keep) -> None:
        group, home = groups.control(key), self._changes.home(spec.name)
        threads = self._cgroups.group(spec.cgroup).threads
        there = groups.resctrl.tasks(group)
        keep(lambda: self._unfill(groups, key, spec, home, there))
        self.foreign[spec.name] = groups.fill(group, threads).left_to_others
        self._changes.filled(spec.name, key, groups.resctrl.tasks(group) & threads())
        self._note(spec.name)

    def _unfill(
        self, groups: rdt.Groups, key: str, spec: WorkloadSpec, before: str, there: frozenset[int]
    ) -> None:
        """Move the threads that were not ``there`` back to the group ``before``; the default group if that is gone."""
        resctrl, threads = groups.resctrl, self._cgroups.group(spec.cgroup).threads()
        inside = threads & _tasks(resctrl, groups.control(key))
        moved = inside - there
        home = None if before == key else self._changes.left(before)
        if home is not None and resctrl.exists(home.group):
            if moved:
                groups.fill(home.group, moved)
            self._changes.filled(spec.name, before, threads & _tasks(resctrl, home.group))
        else:
            if moved:
                groups.release(moved)
            if before == key and inside > moved:
                self._changes.filled(spec.name, key, inside - moved)
            else:
                self._changes.released(spec.name)
        self._note(spec.name)

    # -- restoring -----------------------------------------------------------------------------------------------

    def releasing(self, groups: rdt.Groups, spec: WorkloadSpec) -> Do:
        """The job that moves a workload's threads back to the default group."""
        return lambda keep: self._release(patient(groups, self._lock_wait_s), spec)

    def _release(self, groups: rdt.Groups, spec: WorkloadSpec) -> None:
        groups.release(self._cgroups.group(spec.cgroup).threads)
        self._changes.released(spec.name)
        self._note(spec.name)

    def removing(self, groups: rdt.Groups, key: str, path: str) -> Do:
        """The job that removes a group."""
        return lambda keep: self._remove(patient(groups, self._lock_wait_s), key, path)

    def _remove(self, groups: rdt.Groups, key: str, path: str) -> None:
        names = [name for name, home in self._changes.homes().items() if home == key]
        groups.remove(groups.control(key), with_others_monitors=True)
        self._forget(key, path)
        for name in names:
            self._note(name)

    def forget(self, key: str, path: str) -> None:
        """Forget a group that no longer exists."""
        self._forget(key, path)

    def _forget(self, key: str, path: str) -> None:
        self._changes.removed(key)
        with suppress(KernelError):  # otherwise the journal still names the removed group, which does no harm
            self._journal.close_out([path])

    def take_out(
        self,
        groups: rdt.Groups,
        names: frozenset[str],
        specs: Mapping[str, WorkloadSpec],
        homes: Mapping[str, str],
    ) -> None:
        """Move these workloads out of their groups, and remove groups that become empty. Does not wait for the lock.

        Raises:
            KernelError: a step failed.
        """
        groups = patient(groups, 0.0)
        with _kernel_errors():
            for key in dict.fromkeys(homes[name] for name in names if name in homes):
                left = {name for name, home in homes.items() if home == key and name not in names}
                if not left:
                    self._remove(groups, key, groups.resctrl.access.path(groups.control(key).relative))
                    continue
                for name in names:
                    if homes.get(name) == key and name in specs:
                        self._release(groups, specs[name])


@contextmanager
def _kernel_errors() -> Iterator[None]:
    """Turn errors of ``rdt`` into perphd's."""
    try:
        yield
    except rdt.ResctrlError as exc:
        raise as_kernel_error(exc) from exc


def _undone(back: Undo) -> object:
    with _kernel_errors():
        return back()


def _tasks(resctrl: rdt.Resctrl, group: rdt.GroupRef) -> frozenset[int]:
    """The threads in a group; none if the group is gone, because the default group then has them."""
    try:
        return resctrl.tasks(group)
    except rdt.Gone:
        return frozenset()
