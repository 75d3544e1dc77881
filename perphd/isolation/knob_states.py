"""One record per knob, a setting of a workload: all that isolation remembers about it.

The journal holds the original and the written values, since they must survive the process; this record holds everything
else. The plan, the gates and the writers share these records, and forgetting a workload forgets all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from posixpath import basename
from typing import Final

from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.domain.plan import Key, NotEnforceable, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value, decode
from perphd.isolation.planner import FileState

CONFLICTS_BEFORE_YIELD: Final = 2
"""Number of changes by other programs after which perphd leaves a knob alone."""
_ORDER: Final = {setting.name: number for number, setting in enumerate(fields(Settings))}


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


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another program writes to a knob that perphd has set. ``yielded``: perphd leaves it alone from now on."""

    workload: str
    knob: str
    path: str
    count: int
    found: str
    expected: str
    yielded: bool
    what: str = "changed"

    def __str__(self) -> str:
        then = (
            "left alone until the mode is set again or the configuration is reloaded"
            if self.yielded
            else "set again"
        )
        times = "once" if self.count == 1 else f"{self.count} times"
        if self.what != "changed":
            who = f"by another program, which has interfered {times}"
            return f"{self.path} of {self.workload} was {self.what} {who}; {then}"
        return (
            f"{self.path} of {self.workload} was changed by another program {times}: it reads {self.found!r}, "
            f"perphd had left {self.expected!r} there; {then}"
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A target that the kernel refused ``failures`` times in a row, last at ``at_s``.

    ``wait_s``: pause before a retry; 0: none, infinite: no retry.
    """

    failures: int
    at_s: float
    wait_s: float
    reason: str

    def waits(self, now_s: float) -> bool:
        """True if no retry is due."""
        return math.isinf(self.wait_s) or 0 <= now_s - self.at_s < self.wait_s

    def __str__(self) -> str:
        again = "" if math.isinf(self.wait_s) else f"tried again after {self.wait_s:g} s: "
        return f"{again}{self.reason}"


@dataclass(slots=True)
class KnobState:
    """Isolation's knowledge about one knob.

    Attributes:
        in_force: the value that perphd has set, as last read back; KEEP: none.
        pending: a write of the last plan is outstanding.
        held: why the target of the last plan is not applied. Reasons about a whole resctrl group are kept at
            ``llc_masks``.
        limited: why the target of the last plan is only partly in force.
        conflict: the last change by another program.
        adopted_s: when a value of the cgroup's owner (kubelet) last became the original; None: never.
        refused: the targets that the kernel refused, oldest first.
        tokens: changes left in the token bucket, and the time of the last one; None: the bucket is full.
    """

    in_force: Value = KEEP
    pending: bool = False
    held: tuple[NotEnforceable, ...] = ()
    limited: tuple[NotEnforceable, ...] = ()
    conflict: Conflict | None = None
    adopted_s: float | None = None
    refused: dict[Value, Refusal] = field(default_factory=dict)
    tokens: tuple[float, float] | None = None

    @property
    def is_blank(self) -> bool:
        """True if nothing is known."""
        return self == _BLANK


_BLANK: Final = KnobState()


class KnobStates:
    """The records of all knobs. Does no I/O; kernel threads and the event loop may use it at the same time."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[str, KnobState]] = {}
        self._reported: list[KnobState] = []
        self.targets: Mapping[str, Settings] = {}
        """Target settings of the last plan, by workload."""

    # -- records -------------------------------------------------------------------------------------------------

    def of(self, key: Key) -> KnobState:
        """The record of this knob, created if there is none."""
        try:
            return self._workloads[key[0]][key[1]]
        except KeyError:
            return self._workloads.setdefault(key[0], {}).setdefault(key[1], KnobState())

    def find(self, key: Key) -> KnobState | None:
        """The record of this knob; None if there is none."""
        settings = self._workloads.get(key[0])
        return None if settings is None else settings.get(key[1])

    def all(self, workload: str | None = None) -> Iterator[KnobState]:
        """Yield the records of one workload (None: of all)."""
        names = list(self._workloads) if workload is None else (workload,)
        for name in names:
            yield from list(
                self._workloads.get(name, {}).values()
            )  # a copy, because another thread may add to it

    def forget(self, workload: str) -> None:
        """Forget a workload that was removed."""
        self._workloads.pop(workload, None)

    # -- questions -----------------------------------------------------------------------------------------------

    def in_force(self, name: str) -> Settings:
        """Settings of this workload that perphd has set; KEEP for all others."""
        items = list(self._workloads.get(name, {}).items())
        found = {setting: state.in_force for setting, state in items if state.in_force is not KEEP}
        return replace(UNTOUCHED, **found) if found else UNTOUCHED  # type: ignore[arg-type]

    def not_enforceable(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that cannot be applied to this workload, with reasons."""
        return tuple(reason for _, state in self._items(name) for reason in state.held)

    def limited(self, name: str) -> tuple[NotEnforceable, ...]:
        """Settings of the last plan that are only partly in force, with reasons."""
        return tuple(reason for _, state in self._items(name) for reason in state.limited)

    def blocked(self, name: str) -> tuple[str, ...]:
        """Fields of ``Settings`` of this workload that differ from what the last plan wanted."""
        if not self._reported:  # called for every workload at every tick
            return ()
        return tuple(setting for setting, state in self._items(name) if state.held or state.pending)

    def pending(self, name: str) -> frozenset[str]:
        """Fields of ``Settings`` of this workload that are still to be written."""
        if not self._reported:
            return frozenset()
        return frozenset(setting for setting, state in self._items(name) if state.pending)

    def _items(self, name: str) -> list[tuple[str, KnobState]]:
        """The records of a workload, in the order of the fields of ``Settings``."""
        return sorted(self._workloads.get(name, {}).items(), key=_order)

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
        self.targets = dict(targets)
        for state in self._reported:
            state.pending, state.held, state.limited = False, (), ()
        self._reported = []
        for key in (*(write.key for write in writes), *pending):
            self._report(key).pending = True
        for reason in skipped:
            state = self._report(reason.key)
            state.held = (*state.held, reason)
        for reason in limited:
            state = self._report(reason.key)
            state.limited = (*state.limited, reason)
        for name in self._workloads.keys() - self.targets.keys():
            if all(state.is_blank for state in self.all(name)):
                self.forget(name)

    def waiting(self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec]) -> None:
        """Mark settings that differ from the plan now being written as pending until that finishes."""
        for spec in specs:
            before, after = self.targets.get(spec.name, UNTOUCHED), targets.get(spec.name, UNTOUCHED)
            for setting in _ORDER:
                if getattr(before, setting) != getattr(after, setting):
                    self._report((spec.name, setting)).pending = True

    def _report(self, key: Key) -> KnobState:
        """The record of a knob, noted so that the next plan clears what this plan reports about it."""
        state = self.of(key)
        if not (state.pending or state.held or state.limited):
            self._reported.append(state)
        return state

    def written(self, keys: Iterable[Key]) -> None:
        """Mark these knobs as written."""
        for key in keys:
            if (state := self.find(key)) is not None:
                state.pending = False

    def given_back(self, names: frozenset[str] | None) -> None:
        """Forget everything pending or in force for these workloads (None: for all)."""
        for name in [*self._workloads] if names is None else names:
            for state in self.all(name):
                state.pending, state.in_force = False, KEEP

    def set(self, key: Key, value: Value) -> None:
        """Record a value in force; KEEP: there is none."""
        self.of(key).in_force = value

    def drop(self, workload: str, *settings: str) -> None:
        """Record that perphd has no value in force on these knobs."""
        if (known := self._workloads.get(workload)) is not None:
            for setting in settings:
                if (state := known.get(setting)) is not None:
                    state.in_force = KEEP

    # -- conflicts -----------------------------------------------------------------------------------------------

    def interfered(
        self, key: Key, path: str, what: str = "changed", found: str = "", expected: str = ""
    ) -> None:
        """Count a change by another program to the knob, or to the object that enforces it."""
        state = self.of(key)
        count = 1 if state.conflict is None else state.conflict.count + 1
        yielded = count >= CONFLICTS_BEFORE_YIELD
        state.conflict = Conflict(*key, path, count, found, expected, yielded, what)

    def yielded(self, key: Key) -> Conflict | None:
        """The conflict that made perphd leave this knob alone; None: there is none."""
        state = self.find(key)
        conflict = None if state is None else state.conflict
        return conflict if conflict is not None and conflict.yielded else None

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Every knob that another program has written since perphd did."""
        return tuple(state.conflict for state in self.all() if state.conflict is not None)


def value_in_force(knob: Knob, files: Sequence[FileState], around: str) -> Value:
    """The value that perphd has set, from a knob's files as read; KEEP: none.

    ``around``: the parent cgroup's CPUs or memory nodes.
    """
    if all(file.original in (None, file.now) for file in files):
        return KEEP
    value = decode(knob.setting, knob.version, {basename(file.path): file.now for file in files})
    if files[0].original == "" and isinstance(value, CpuSet):
        given = CpuSet.parse(around)
        return KEEP if given and given <= value else value  # no confinement: equivalent to an empty list
    return value


def _order(item: tuple[str, object]) -> int:
    return _ORDER.get(item[0], len(_ORDER))
