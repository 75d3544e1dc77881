"""The one writer: reads back, plans the difference, applies it as a transaction, and gives everything back.

``plan`` reads and never writes (it serves ``observe`` as well); ``apply`` is the only way to a kernel write.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from posixpath import basename, dirname
from typing import TypeVar

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Busy, Gone, KernelError, ParseError
from perphd.domain.plan import ChangeSet, NotEnforceable, Stage, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import RESCTRL_ABSENT, Cgroup, Cgroups, Knob
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.cgroup.knobs import CONTROLLERS, RESCTRL_SETTINGS, Value, decode
from perphd.host.fs import KernelFs
from perphd.isolation.journal import Journal, Original
from perphd.isolation.planner import FileState, KnobState, Wanted, attainable_cpus, plan
from perphd.isolation.readback import ReadBack
from perphd.isolation.restore import FileReport, RestoreReport, restore_journal
from perphd.isolation.transaction import Result, Transaction
from perphd.isolation.watch import Conflict, Key, Watch

Refuse = Callable[[str], str | None]
"""cgroup path -> why its files must not be written directly (a systemd unit), or None."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change set. ``undone``: writes taken back after ``failed``; ``problems``: what could not be.

    ``skipped``: workloads whose cgroup vanished meanwhile.
    """

    ok: bool
    written: tuple[Write, ...] = ()
    undone: tuple[Write, ...] = ()
    failed: KernelError | None = None
    duration_s: float = 0.0
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Executor:
    """Brings target settings into force on the named workloads, and gives everything back.

    Args:
        refuse: says why a cgroup must not be written directly; asked for every workload that is to be changed.
        on_write: told of every kernel write and its outcome (``written``, ``undone``, ``restored``, ``failed: ...``),
            after the transaction, in the event loop's thread.
        clock: seconds, for ``duration_s``, the deadline, and the wait after changes that could not be recorded.
        deadline_s: how long the writes of one transaction may take together before the rest is given up and undone.
        in_thread: write in a worker thread (a write can block in the kernel); False runs inline (simulated hosts).
    """

    def __init__(
        self,
        fs: KernelFs,
        hierarchies: Hierarchies,
        journal: Journal,
        *,
        refuse: Refuse | None = None,
        on_write: Callable[[Write, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = 2.0,
        in_thread: bool = True,
    ) -> None:
        self._fs, self._hierarchies, self._journal = fs, hierarchies, journal
        self._cgroups = Cgroups(fs, hierarchies)
        self._refuse, self._on_write = refuse, on_write
        self._clock, self._deadline_s = clock, deadline_s
        self._thread = ThreadPoolExecutor(1, "perphd-isolation") if in_thread else None
        self._lock = asyncio.Lock()
        self._running: asyncio.Future[object] | None = None
        self._read = ReadBack(fs, journal)
        self._planned: dict[Key, tuple[Knob, Value]] = {}
        self._watch = Watch(journal)
        self._force: dict[Key, Value] = {}
        self._skipped: dict[str, tuple[NotEnforceable, ...]] = {}
        self._targets: dict[str, Settings] = {}
        self._pending: set[Key] = set()

    # -- questions -----------------------------------------------------------------------------------------------

    def enforceable(self, spec: WorkloadSpec) -> tuple[frozenset[str], tuple[NotEnforceable, ...]]:
        """Fields of ``Settings`` that can be set for this workload now, and the others with their reasons."""
        group = self._cgroups.group(spec.cgroup)
        names = (*CONTROLLERS, *RESCTRL_SETTINGS)
        reason = None if group.exists() else f"the cgroup {spec.cgroup} does not exist (yet)"
        if reason is None and self._refuse is not None:
            reason = self._refuse(spec.cgroup)
        if reason is not None:
            return frozenset(), tuple(NotEnforceable(spec.name, name, reason) for name in names)
        found = group.enforceable()
        refused = tuple(
            NotEnforceable(spec.name, name, why) for name, why in found.items() if why is not None
        )
        return frozenset(name for name, why in found.items() if why is None), refused

    def in_force(self, name: str) -> Settings:
        """What perphd has set on this workload, as last read back; KEEP where nothing."""
        settings = UNTOUCHED
        for (workload, setting), value in list(self._force.items()):  # a copy: the worker may add to it
            if workload == name:
                settings = replace(settings, **{setting: value})  # type: ignore[arg-type]
        return settings

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """What the last plan wanted for this workload and could not have."""
        return self._skipped.get(name, ())

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that are not as the last plan wanted them.

        Because they cannot be set here, were refused, are yielded to somebody else, or because their write (or the
        one that gives them back) is not made yet: not applied, failed and undone, or stuck in the kernel.
        """
        missing = {left_out.knob for left_out in self._skipped.get(name, ())}
        missing |= {knob for workload, knob in list(self._pending) if workload == name}
        return tuple(field.name for field in fields(Settings) if field.name in missing)

    def conflicts(self) -> tuple[Conflict, ...]:
        """Knobs that somebody else has written to since perphd did."""
        return self._watch.conflicts

    def forget_conflicts(self, workload: str | None = None) -> None:
        """Forget conflicts and refused values, of one workload or of all: after a mode change or a reload."""
        self._watch.reset(workload)

    @property
    def journal_entries(self) -> int:
        """How many files are changed and not given back."""
        return len(self._journal.originals)

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> ChangeSet:
        """The writes that lead from what the kernel reads back to these targets; empty: nothing to do.

        Workloads without a target are given back what perphd had changed; those not in ``specs`` are not touched.
        """
        if self._running is not None:
            self._note_waiting(targets, specs)
            return ChangeSet((), (), "an earlier change is still being written")
        self._planned.clear()
        self._skipped = {}
        changed = {(dirname(entry.path), entry.knob) for entry in self._journal.originals.values()}
        claimed = {spec.cgroup for spec in specs}
        self._read.begin(claimed)
        wanted: list[Wanted] = []
        skipped: list[NotEnforceable] = []
        for spec in specs:
            target = targets.get(spec.name, UNTOUCHED)
            for item in self._wanted(spec, target, changed, claimed):
                if isinstance(item, Wanted):
                    wanted.append(item)
                else:
                    skipped.append(item)
        changes = plan(wanted, skipped)
        if changes and (reason := self._watch.waits(targets, self._clock())):
            keys = dict.fromkeys((write.workload, write.knob) for write in changes.writes)
            waiting = tuple(NotEnforceable(*key, reason) for key in keys)
            changes = ChangeSet((), (*changes.skipped, *waiting), reason)
        for left_out in changes.skipped:
            self._skipped[left_out.workload] = (*self._skipped.get(left_out.workload, ()), left_out)
        self._targets = dict(targets)
        self._pending = {(write.workload, write.knob) for write in changes.writes}
        return changes

    def _note_waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> None:
        """What is wanted otherwise than by the plan that is being written must wait until that is through."""
        for spec in specs:
            before, after = self._targets.get(spec.name, UNTOUCHED), targets.get(spec.name, UNTOUCHED)
            self._pending |= {
                (spec.name, field.name)
                for field in fields(Settings)
                if getattr(before, field.name) != getattr(after, field.name)
            }

    def _wanted(
        self, spec: WorkloadSpec, target: Settings, changed: set[tuple[str, str]], claimed: set[str]
    ) -> list[Wanted | NotEnforceable]:
        items: list[Wanted | NotEnforceable] = [
            NotEnforceable(spec.name, setting, RESCTRL_ABSENT)
            for setting in RESCTRL_SETTINGS
            if getattr(target, setting) is not KEEP
        ]
        active: list[str] = []
        for setting, controller in CONTROLLERS.items():
            hierarchy = self._hierarchies.of(controller)
            directory = "" if hierarchy is None else hierarchy.path(spec.cgroup)
            if getattr(target, setting) is not KEEP or (directory, setting) in changed:
                active.append(setting)
            else:
                self._force.pop((spec.name, setting), None)
        if not active:
            return items
        group = self._cgroups.group(spec.cgroup)
        if not group.exists():
            for setting in active:
                self._force.pop((spec.name, setting), None)
            return items
        reason = None if self._refuse is None else self._refuse(spec.cgroup)
        for setting in active:
            value: Value = getattr(target, setting)
            try:
                item = reason or self._one_wanted(spec, group, setting, value, claimed)
            except Gone:
                continue
            except KernelError as exc:
                item = str(exc)
            if isinstance(item, Wanted):
                items.append(item)
            elif item and value is not KEEP:
                items.append(NotEnforceable(spec.name, setting, item))
        return items

    def _one_wanted(
        self, spec: WorkloadSpec, group: Cgroup, setting: str, target: Value, claimed: set[str]
    ) -> Wanted | str:
        """The setting as read back with its target, or why it is left alone (empty: no reason needs telling)."""
        read = self._read.knob(group, setting)
        if isinstance(read, str):
            return read
        knob, identity, files = read
        key = (spec.name, setting)
        self._watch.look(key, identity, files)
        self._note_in_force(key, knob, files)
        conflict = self._watch.yielded(key)
        if conflict is not None:
            return str(conflict)
        foreign = any(self._watch.is_foreign(file) for file in files)
        if target is KEEP and foreign:
            return ""
        if refused := self._watch.refused(key, target):
            return refused
        self._planned[key] = (knob, target)
        if setting != "cpus":
            return Wanted(KnobState(spec.name, knob, files), target)
        if knob.version == 1:
            outer = next((path for path in _ancestors(spec.cgroup) if path in claimed), None)
            if outer is not None:
                return f"{spec.cgroup} lies within the workload {outer}, whose CPUs bind it on cgroup v1"
        state = KnobState(spec.name, knob, files, self._read.parent_cpus(knob.directory), foreign)
        if knob.version == 1 and not _is_attained(state, target):
            state = replace(state, files=files + self._read.cpus_below(knob.directory))
        return Wanted(state, target)

    def _note_in_force(self, key: Key, knob: Knob, files: Iterable[FileState]) -> None:
        files = list(files)
        if all(file.original in (None, file.now) for file in files):
            self._force.pop(key, None)
            return
        value = decode(knob.setting, knob.version, {basename(file.path): file.now for file in files})
        if knob.setting == "cpus" and files[0].original == "" and isinstance(value, CpuSet):
            around = CpuSet.parse(self._read.parent_cpus(knob.directory))
            value = KEEP if around and around <= value else value  # no confinement: equal in effect to empty
        if value is KEEP:
            self._force.pop(key, None)
        else:
            self._force[key] = value

    # -- apply ---------------------------------------------------------------------------------------------------

    async def apply(self, changes: ChangeSet) -> Applied:
        """Write a planned change set, all of it or nothing; a cancelled call finishes before it is cancelled.

        Does not raise for what the kernel refuses: see ``Applied.failed``.
        """
        if not changes:
            return Applied(True)
        async with self._lock:
            started = self._clock()
            transaction = Transaction(
                self._fs, self._journal, dict(self._read.identities), self._clock, self._deadline_s
            )
            done = await self._run(lambda: self._transact(transaction, changes.writes))
            took = self._clock() - started
        if isinstance(done, Busy):
            return Applied(False, failed=done, duration_s=took)
        self._tell(done)
        return Applied(
            done.failed is None,
            tuple(done.written),
            tuple(done.undone),
            done.failed,
            took,
            tuple(sorted(done.gone)),
            tuple(done.undo_problems),
        )

    def _transact(self, transaction: Transaction, writes: Sequence[Write]) -> Result:
        result = transaction.run(writes)
        if result.failed is not None and result.at_fault is None:
            self._watch.unrecorded(self._targets, self._clock(), result.failed)
            return result  # nothing was written
        self._watch.recorded()
        touched = {write.path for write in result.written}
        if result.at_fault is not None and result.failed is not None:
            touched.add(result.at_fault.path)
            key = (result.at_fault.workload, result.at_fault.knob)
            planned = self._planned.get(key)
            self._watch.failed(key, KEEP if planned is None else planned[1], result.failed)
        else:
            for write in result.written:
                key = (write.workload, write.knob)
                if key in self._planned:
                    self._watch.succeeded(key, self._planned[key][1])
            self._pending -= {(write.workload, write.knob) for write in writes}
        self._settle({(write.workload, write.knob) for write in writes}, touched)
        return result

    def _settle(self, keys: set[Key], touched: set[str]) -> None:
        """Remember what the knobs read after a transaction, and close those that hold their originals (again)."""
        self._read.forget_around()
        entries: dict[Key, list[Original]] = defaultdict(list)
        for entry in self._journal.originals.values():
            if (entry.workload, entry.knob) in keys:
                entries[entry.workload, entry.knob].append(entry)
        closed: list[str] = []
        for key, group in entries.items():
            written = any(entry.path in touched for entry in group)
            texts: dict[str, str] = {}
            holds = [
                self._holds_original(entry, written, texts) for entry in group
            ]  # all: each takes note as well
            if all(holds):
                closed += [entry.path for entry in group]
                self._force.pop(key, None)
            elif (planned := self._planned.get(key)) is not None:
                knob = planned[0]
                with suppress(KernelError):
                    identity = self._fs.identity(knob.directory)
                    files = [self._read.file(path, identity, texts.get(path)) for path in knob.paths]
                    self._note_in_force(key, knob, files)
        with suppress(KernelError):  # the journal then still names values that the files hold already
            self._journal.close_out(closed)

    def _holds_original(self, entry: Original, written: bool, texts: dict[str, str]) -> bool:
        try:
            raw = self._fs.read(entry.path)
        except Gone:
            return True
        except KernelError:
            return False
        text = texts[entry.path] = raw.decode(errors="replace").rstrip("\n")
        if written:
            self._watch.wrote(entry.path, entry.identity, text)
        return raw == entry.raw

    def _tell(self, result: Result) -> None:
        if self._on_write is None:
            return
        for write in result.written:
            self._on_write(write, "written")
        if result.at_fault is not None:
            self._on_write(result.at_fault, f"failed: {result.failed}")
        for write in result.undone:
            self._on_write(write, "undone")

    # -- restore -------------------------------------------------------------------------------------------------

    async def restore(self, names: Iterable[str] | None = None, force: bool = False) -> RestoreReport:
        """Give back everything, or what these workloads had; see ``perphd.isolation.restore``."""
        chosen = None if names is None else frozenset(names)
        async with self._lock:
            done = await self._run(lambda: self._give_back(chosen, force))
        if isinstance(done, Busy):
            left = [
                e for e in list(self._journal.originals.values()) if chosen is None or e.workload in chosen
            ]
            failed = tuple(FileReport(e.path, e.workload, e.knob, e.text, note=str(done)) for e in left)
            return RestoreReport(failed=failed, notes=(f"nothing restored: {done}",))
        if self._on_write is not None:
            for file in done.restored:
                write = Write(file.workload, file.knob, file.path, file.now, file.found, Stage.GROW)
                self._on_write(write, "restored")
        return done

    def _give_back(self, names: frozenset[str] | None, force: bool) -> RestoreReport:
        originals = [e for e in self._journal.originals.values() if names is None or e.workload in names]
        report = restore_journal(self._fs, self._journal, originals, force)
        for entry in originals:
            self._watch.forget(entry.path)
            self._force.pop((entry.workload, entry.knob), None)
        self._pending = {key for key in self._pending if names is not None and key[0] not in names}
        return report

    # -- the worker ----------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], _T]) -> _T | Busy:
        """Run in the worker thread; Busy if it, or an earlier one, does not come back in time.

        Cancellation waits for the work: the kernel is not left halfway.
        """
        if self._thread is None:
            return work()
        if self._running is not None:
            return self._stuck()
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._running = future  # type: ignore[assignment]
        future.add_done_callback(self._finished)
        cancelled = False
        while True:
            try:
                await asyncio.wait({future}, timeout=2 * self._deadline_s)
                break
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return future.result() if future.done() else self._stuck()

    def _finished(self, _future: object) -> None:
        self._running = None

    def _stuck(self) -> Busy:
        advice = "the kernel has not answered an earlier write; nothing else is written until it does"
        return Busy("", "write", errno.ETIMEDOUT, advice=advice)

    def close(self) -> None:
        """End the worker thread; the journal is the caller's to close."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)


def _is_attained(state: KnobState, target: Value) -> bool:
    """True if the group has the CPUs that it is to have, so that those below it need no look."""
    try:
        return isinstance(target, CpuSet) and CpuSet.parse(state.files[0].now) == attainable_cpus(
            state, target
        )
    except ParseError:
        return False


def _ancestors(cgroup: str) -> Iterable[str]:
    while (cgroup := dirname(cgroup)) != "/":
        yield cgroup
