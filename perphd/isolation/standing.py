"""What perphd has in force, what it wanted and could not have, and what is still to be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from posixpath import basename

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.plan import Key, NotEnforceable, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value, decode
from perphd.isolation.planner import FileState


class Standing:
    """How the workloads stand, as last read back. Reads nothing itself."""

    def __init__(self) -> None:
        self._force: dict[Key, Value] = {}
        self._skipped: dict[str, tuple[NotEnforceable, ...]] = {}
        self._limited: dict[str, tuple[NotEnforceable, ...]] = {}
        self._targets: dict[str, Settings] = {}
        self._pending: set[Key] = set()

    @property
    def targets(self) -> Mapping[str, Settings]:
        """What the last plan was for."""
        return self._targets

    # -- questions -----------------------------------------------------------------------------------------------

    def in_force(self, name: str) -> Settings:
        """What perphd has set on this workload; KEEP where nothing."""
        settings = UNTOUCHED
        for (workload, setting), value in list(self._force.items()):  # a copy: the worker may add to it
            if workload == name:
                settings = replace(settings, **{setting: value})  # type: ignore[arg-type]
        return settings

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """What the last plan wanted for this workload and could not have."""
        return self._skipped.get(name, ())

    def limited(self, name: str) -> tuple[NotEnforceable, ...]:
        """What of the last plan is in force in part only, with the reason."""
        return self._limited.get(name, ())

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that are not as the last plan wanted them."""
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
        """A plan was made for these targets. ``pending``: knobs still to be set, beside those of the writes."""
        self._targets = dict(targets)
        self._pending = {*(write.key for write in writes), *pending}
        self._skipped, self._limited = _by_workload(skipped), _by_workload(limited)

    def waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> None:
        """What is wanted otherwise than by the plan that is being written must wait until that is through."""
        for spec in specs:
            before, after = self._targets.get(spec.name, UNTOUCHED), targets.get(spec.name, UNTOUCHED)
            self._pending |= {
                (spec.name, field.name)
                for field in fields(Settings)
                if getattr(before, field.name) != getattr(after, field.name)
            }

    def written(self, keys: Iterable[Key]) -> None:
        """The writes of these knobs are through."""
        self._pending = self._pending.difference(keys)

    def given_back(self, names: frozenset[str] | None) -> None:
        """These workloads (None: all) have nothing pending any more, and nothing in force."""
        self._pending = {key for key in self._pending if names is not None and key[0] not in names}
        for key in [key for key in self._force if names is None or key[0] in names]:
            del self._force[key]

    def note(self, key: Key, knob: Knob, files: Iterable[FileState], around: str) -> None:
        """This is what the knob's files read; ``around``: what the parent gives, for CPUs and memory nodes."""
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
        """This value is in force."""
        if value is KEEP:
            self.drop(key)
        else:
            self._force[key] = value

    def drop(self, key: Key) -> None:
        """Nothing of perphd's is in force on this knob."""
        self._force.pop(key, None)


def _by_workload(items: Iterable[NotEnforceable]) -> dict[str, tuple[NotEnforceable, ...]]:
    found: dict[str, tuple[NotEnforceable, ...]] = {}
    for item in items:
        found[item.workload] = (*found.get(item.workload, ()), item)
    return found
