"""Settings in force, settings that could not be applied, and settings still to be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from posixpath import basename

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.plan import Key, NotEnforceable, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value, decode
from perphd.isolation.planner import FileState


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of applying a change set.

    ``undone``: writes rolled back after ``failed``; ``problems``: rollbacks that failed, as texts. ``skipped``:
    workloads whose cgroup vanished meanwhile. ``more``: the plan has further writes, which the next plan contains.
    """

    ok: bool
    written: tuple[Write, ...] = ()
    undone: tuple[Write, ...] = ()
    failed: KernelError | None = None
    duration_s: float = 0.0
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    more: bool = False

    @property
    def kept(self) -> tuple[Write, ...]:
        """Writes that are in force."""
        undone = set(self.undone)
        return tuple(write for write in self.written if write not in undone)


class AppliedState:
    """The last known state of every knob, as its callers report it. Does no I/O itself."""

    def __init__(self) -> None:
        self._force: dict[Key, Value] = {}
        self._skipped: dict[str, tuple[NotEnforceable, ...]] = {}
        self._limited: dict[str, tuple[NotEnforceable, ...]] = {}
        self._targets: dict[str, Settings] = {}
        self._pending: set[Key] = set()

    @property
    def targets(self) -> Mapping[str, Settings]:
        """Target settings of the last plan, by workload."""
        return self._targets

    # -- questions -----------------------------------------------------------------------------------------------

    def in_force(self, name: str) -> Settings:
        """Settings of this workload that perphd has set; KEEP for all others."""
        settings = UNTOUCHED
        for (workload, setting), value in list(self._force.items()):  # a copy: the worker may add to it
            if workload == name:
                settings = replace(settings, **{setting: value})  # type: ignore[arg-type]
        return settings

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that cannot be applied to this workload, with reasons."""
        return self._skipped.get(name, ())

    def limited(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that are only partly in force, with reasons."""
        return self._limited.get(name, ())

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that differ from what the last plan wanted."""
        if name not in self._skipped and not self._pending:
            return ()
        missing = {left_out.knob for left_out in self._skipped.get(name, ())}
        missing |= {knob for workload, knob in list(self._pending) if workload == name}
        return tuple(field.name for field in fields(Settings) if field.name in missing)

    def pending(self, name: str) -> frozenset[str]:
        """Fields of ``Settings`` of this workload that are still to be written."""
        return frozenset(knob for workload, knob in list(self._pending) if workload == name)

    # -- what happened -------------------------------------------------------------------------------------------

    def planned(
        self,
        targets: Mapping[str, Settings],
        writes: Sequence[Write],
        skipped: Iterable[NotEnforceable],
        limited: Iterable[NotEnforceable],
        pending: Iterable[Key] = (),
    ) -> None:
        """Record a new plan for these targets. ``pending``: knobs still to be written, in addition to those in
        ``writes``.
        """
        self._targets = dict(targets)
        self._pending = {*(write.key for write in writes), *pending}
        self._skipped, self._limited = _by_workload(skipped), _by_workload(limited)

    def waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> None:
        """Mark settings that differ from the plan now being written as pending until that finishes."""
        for spec in specs:
            before, after = self._targets.get(spec.name, UNTOUCHED), targets.get(spec.name, UNTOUCHED)
            self._pending |= {
                (spec.name, field.name)
                for field in fields(Settings)
                if getattr(before, field.name) != getattr(after, field.name)
            }

    def written(self, keys: Iterable[Key]) -> None:
        """Mark these knobs as written."""
        self._pending = self._pending.difference(keys)

    def given_back(self, names: frozenset[str] | None) -> None:
        """Forget everything pending or in force for these workloads (None: for all)."""
        self._pending = {key for key in self._pending if names is not None and key[0] not in names}
        for key in [key for key in self._force if names is None or key[0] in names]:
            del self._force[key]

    def note(self, key: Key, knob: Knob, files: Iterable[FileState], around: str) -> None:
        """Record the values read from a knob's files. ``around``: the parent cgroup's CPUs or memory nodes."""
        files = list(files)
        if all(file.original in (None, file.now) for file in files):
            self.drop(key)
            return
        value = decode(knob.setting, knob.version, {basename(file.path): file.now for file in files})
        if files[0].original == "" and isinstance(value, CpuSet):
            given = CpuSet.parse(around)
            value = KEEP if given and given <= value else value  # no confinement: equal in effect to empty
        self.set(key, value)

    def set(self, key: Key, value: Value) -> None:
        """Record a value in force; KEEP removes the record."""
        if value is KEEP:
            self.drop(key)
        else:
            self._force[key] = value

    def drop(self, key: Key) -> None:
        """Record that perphd has no value in force on this knob."""
        self._force.pop(key, None)


def _by_workload(items: Iterable[NotEnforceable]) -> dict[str, tuple[NotEnforceable, ...]]:
    found: dict[str, tuple[NotEnforceable, ...]] = {}
    for item in items:
        found[item.workload] = (*found.get(item.workload, ()), item)
    return found
