"""Cache ways and memory bandwidth of workloads, by resctrl groups of perphd's own.

Workloads that are to have the same share one group, since CLOSIDs are few. What is given back is the group as a whole:
it is removed, and its tasks fall to the default group, where they were before. The journal names every group that was
made. Threads that another program has put into a group of its own are left there, and told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import rdt
from perphd.domain.allocation import KEEP, UNTOUCHED, Settings
from perphd.domain.errors import KernelError
from perphd.domain.plan import NotEnforceable, Stage, Write
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS, Value
from perphd.host.fs import KernelFs
from perphd.host.resctrl import (
    PREFIX,
    as_kernel_error,
    check_schemata,
    open_groups,
    same_schemata,
    wanted_schemata,
    why_not,
)
from perphd.isolation.journal import Journal
from perphd.isolation.journal_format import Original
from perphd.isolation.planner import FileState
from perphd.isolation.refusals import Refusals
from perphd.isolation.standing import Standing
from perphd.isolation.transaction import as_failure
from perphd.isolation.watch import Watch

KNOB: Final = "llc_masks"
"""The knob under which groups stand in the journal and in reports."""
LOOK_AGAIN_S: Final = 30.0
"""Where resctrl is not mounted it is looked for again so often."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What is to be done about groups, as writes for people."""

    writes: tuple[Write, ...] = ()
    skipped: tuple[NotEnforceable, ...] = ()
    limited: tuple[NotEnforceable, ...] = ()


@dataclass(slots=True)
class CacheResult:
    """As ``transaction.Result``, for groups."""

    written: list[Write] = field(default_factory=list)
    undone: list[Write] = field(default_factory=list)
    failed: KernelError | None = None
    at_fault: Write | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Placement:
    """The control group that perphd has put a workload's threads into; ``shared``: another workload's are there too."""

    group: rdt.GroupRef
    shared: bool


Undo = Callable[[], object]


class Caches:
    """Plans and applies; remembers only who is in which group, which can be found out again."""

    def __init__(
        self,
        fs: KernelFs,
        cgroups: Cgroups,
        journal: Journal,
        watch: Watch,
        standing: Standing,
        refusals: Refusals,
    ) -> None:
        self._fs, self._cgroups, self._journal = fs, cgroups, journal
        self._watch, self._standing, self._refusals = watch, standing, refusals
        self._now_s = 0.0
        self._found: rdt.Groups | str | None = None
        self._looked_s = 0.0
        self._held = False
        self._members: dict[str, frozenset[str]] = {}
        self._placed: dict[str, rdt.GroupRef] = {}
        self._foreign: dict[str, frozenset[int]] = {}
        self._values: dict[str, Value] = {}
        self._todo: dict[Write, Callable[[], Undo | None]] = {}

    # -- what can be set -----------------------------------------------------------------------------------------

    def missing(self, setting: str, now_s: float) -> str:
        """Why this setting cannot be set here; empty if it can."""
        groups = self.groups(now_s)
        return groups if isinstance(groups, str) else why_not(groups, setting)

    def groups(self, now_s: float) -> rdt.Groups | str:
        """The mounted resctrl with perphd's groups, or why there is none."""
        if isinstance(self._found, rdt.Groups) and not self._found.resctrl.exists(rdt.DEFAULT_GROUP):
            self._found = None  # unmounted under us
        stale = isinstance(self._found, str) and not 0 <= now_s - self._looked_s < LOOK_AGAIN_S
        if self._found is None or stale:
            self._found, self._looked_s = open_groups(self._fs), now_s
        return self._found

    def placement(self) -> Mapping[str, Placement]:
        """The control group of every workload that perphd has put into one; all others are in the default group."""
        placed = dict(self._placed)
        crowd = Counter(placed.values())
        return {name: Placement(group, crowd[group] > 1) for name, group in placed.items()}

    # -- plan ----------------------------------------------------------------------------------------------------

    def plan(
        self, targets: Mapping[str, Settings], specs: Sequence[WorkloadSpec], now_s: float, held: bool = False
    ) -> CachePlan:
        """What leads to these targets. Reads nothing where nothing is wanted and nothing was made.

        ``held``: no group is removed yet.
        """
        self._held, self._now_s = held, now_s
        self._todo.clear()
        asked = [spec for spec in specs if _asks(targets.get(spec.name, UNTOUCHED))]
        for spec in specs:
            if spec not in asked:
                for setting in RESCTRL_SETTINGS:
                    self._standing.drop((spec.name, setting))
        if not asked and not self._made():
            return CachePlan()
        groups = self.groups(now_s)
        if isinstance(groups, str):
            told = [
                NotEnforceable(spec.name, setting, groups)
                for spec in asked
                for setting in RESCTRL_SETTINGS
                if getattr(targets[spec.name], setting) is not KEEP
            ]
            return CachePlan((), tuple(told))
        try:
            return self._plan(groups, targets, asked, specs)
        except rdt.ResctrlError as exc:
            return CachePlan((), tuple(NotEnforceable(spec.name, KNOB, str(exc)) for spec in asked))

    def _plan(
        self,
        groups: rdt.Groups,
        targets: Mapping[str, Settings],
        asked: Sequence[WorkloadSpec],
        specs: Sequence[WorkloadSpec],
    ) -> CachePlan:
        skipped: list[NotEnforceable] = []
        limited: list[NotEnforceable] = []
        wanted: dict[str, rdt.Schemata] = {}
        for spec in asked:
            reasons = self._why_not(groups, targets[spec.name])
            skipped += [NotEnforceable(spec.name, setting, why) for setting, why in reasons.items()]
            kept = {
                name: KEEP if name in reasons else getattr(targets[spec.name], name)
                for name in RESCTRL_SETTINGS
            }
            if all(value is KEEP for value in kept.values()) or not self._cgroups.group(spec.cgroup).exists():
                continue
            masks, pct = (() if value is KEEP else value for value in kept.values())
            schemata = wanted_schemata(groups.resctrl.info, masks, pct)
            if problem := check_schemata(groups, schemata):
                skipped.append(NotEnforceable(spec.name, KNOB, problem))
                continue
            wanted[spec.name] = schemata
        by_key = self._assign(wanted)
        writes: list[Write] = []
        for key, names in by_key.items():
            members = [spec for spec in asked if spec.name in names]
            writes += self._one_group(
                groups, key, wanted[members[0].name], members, targets, skipped, limited
            )
        left = {name: key for key, names in self._members.items() for name in names if name not in wanted}
        for spec in specs:
            # Whose group goes needs no releasing: its threads fall to the default group with it.
            if left.get(spec.name) in by_key and self._cgroups.group(spec.cgroup).exists():
                writes.append(self._releasing(groups, spec))
        for entry in self._made():
            own = groups.key(rdt.GroupRef(entry.path.rsplit("/", 1)[1]))
            if own is not None and own not in by_key and not self._held:
                writes.append(self._removing(groups, own, entry))
        self._values = {spec.name: _value(targets[spec.name]) for spec in asked}
        self._members = {key: frozenset(names) for key, names in by_key.items()}
        return CachePlan(tuple(writes), tuple(skipped), tuple(limited))

    def _why_not(self, groups: rdt.Groups, target: Settings) -> dict[str, str]:
        wanted = [setting for setting in RESCTRL_SETTINGS if getattr(target, setting) is not KEEP]
        return {setting: why for setting in wanted if (why := why_not(groups, setting))}

    def _assign(self, wanted: Mapping[str, rdt.Schemata]) -> dict[str, list[str]]:
        """Who shares a group: those that are to have the same. A group stays with most of those who are in it."""
        alike: dict[str, list[str]] = {}
        for name, schemata in wanted.items():
            alike.setdefault(str(schemata), []).append(name)
        found: dict[str, list[str]] = {}
        for names in sorted(alike.values(), key=len, reverse=True):
            inside = {
                key: len(members & set(names)) for key, members in self._members.items() if key not in found
            }
            best = max(inside, key=lambda key: inside[key], default="")
            if not best or not inside[best]:
                taken = {*found, *self._members}
                best = next((name for name in names if name not in taken), names[0])
            found[best] = names
        return found

    def _one_group(
        self,
        groups: rdt.Groups,
        key: str,
        wanted: rdt.Schemata,
        members: Sequence[WorkloadSpec],
        targets: Mapping[str, Settings],
        skipped: list[NotEnforceable],
        limited: list[NotEnforceable],
    ) -> list[Write]:
        group = groups.control(key)
        path = groups.resctrl.access.path(group.relative)
        text = wanted.to_write().strip()
        exists = groups.resctrl.exists(group)
        found = groups.resctrl.schemata(group) if exists else rdt.Schemata()
        same = exists and same_schemata(groups, wanted, found)
        writes: list[Write] = []
        first = members[0].name
        if exists:
            identity = groups.resctrl.identity(group)
            state = FileState(f"{path}/schemata", text if same else found.to_write().strip(), "")
            self._watch.look((first, KNOB), identity, [state])
            if (conflict := self._watch.yielded((first, KNOB))) is not None and not same:
                skipped += [NotEnforceable(spec.name, KNOB, str(conflict)) for spec in members]
                return []
        if not same:
            if refused := self._refusals.why_not((first, KNOB), _value(targets[first]), self._now_s):
                skipped += [NotEnforceable(spec.name, KNOB, refused) for spec in members]
                return []
            write = Write(first, KNOB, f"{path}/schemata", text, str(found).strip(), Stage.SHRINK)
            self._todo[write] = lambda: self._make(groups, key, wanted, first)
            writes.append(write)
        inside = groups.resctrl.tasks(group) if exists else frozenset[int]()
        for spec in members:
            threads = self._cgroups.group(spec.cgroup).threads()
            if threads & inside:
                self._placed[spec.name] = group
            elif self._placed.get(spec.name) == group:
                del self._placed[spec.name]  # emptied by somebody else, or everything in it has ended
            foreign = threads & self._foreign.get(spec.name, frozenset())
            if foreign:
                why = f"{len(foreign)} of its threads are in groups of another program and left there"
                limited.append(NotEnforceable(spec.name, KNOB, why))
            if threads - inside - foreign:
                write = Write(spec.name, KNOB, f"{path}/tasks", spec.cgroup, "", Stage.SHRINK)
                self._todo[write] = lambda spec=spec: self._fill(groups, group, spec)  # type: ignore[misc]
                writes.append(write)
            in_force = same and len(threads - inside) < max(1, len(threads))
            for setting in RESCTRL_SETTINGS:
                value = getattr(targets[spec.name], setting) if in_force else KEEP
                self._standing.set((spec.name, setting), value)
        return writes

    def _removing(self, groups: rdt.Groups, key: str, entry: Original) -> Write:
        write = Write(entry.workload, KNOB, entry.path, "", "group", Stage.GROW)
        self._todo[write] = lambda: self._remove(groups, key, entry.path)
        return write

    def _releasing(self, groups: rdt.Groups, spec: WorkloadSpec) -> Write:
        path = groups.resctrl.access.path("tasks")
        write = Write(spec.name, KNOB, path, spec.cgroup, "", Stage.GROW)
        threads = self._cgroups.group(spec.cgroup).threads
        self._todo[write] = lambda: self._release(groups, spec.name, threads)
        return write

    def _release(self, groups: rdt.Groups, name: str, threads: rdt.TidSource) -> None:
        groups.release(threads)
        self._placed.pop(name, None)

    # -- apply ---------------------------------------------------------------------------------------------------

    def owns(self, write: Write) -> bool:
        """True if this write of the last plan is about a group."""
        return write in self._todo

    def apply(self, writes: Sequence[Write]) -> CacheResult:
        """Do these writes of the last plan; at the first failure all of them are undone."""
        result, undo = CacheResult(), list[tuple[Write, Undo]]()
        for write in writes:
            try:
                back = self._todo[write]()
                result.written.append(write)
                if back is not None:
                    undo.append((write, back))
            except Exception as exc:  # whatever it is, what was done before it is to be undone
                result.failed = (
                    as_kernel_error(exc) if isinstance(exc, rdt.ResctrlError) else as_failure(exc, write)
                )
                result.at_fault = write
                break
        if result.failed is not None and result.at_fault is not None:
            key = (result.at_fault.workload, KNOB)
            self._refusals.failed(key, self._values.get(key[0], KEEP), result.failed, self._now_s)
            for write, back in reversed(undo):
                try:
                    back()
                    result.undone.append(write)
                except Exception as exc:
                    result.problems.append(f"not undone, perphd restore will give it back: {exc}")
        return result

    def _make(self, groups: rdt.Groups, key: str, wanted: rdt.Schemata, workload: str) -> Undo:
        access = groups.resctrl.access
        group = groups.control(key)
        path = access.path(group.relative)
        known, mount = self._journal.originals.get(path), access.identity()
        if known is None or known.identity != mount:
            self._journal.record([Original(path, b"", mount, KNOB, workload)])
        existed = groups.resctrl.exists(group)
        try:
            made = groups.make(key)
            applied = groups.ensure(group, wanted)
        except rdt.ResctrlError:
            if not existed:
                self._remove(groups, key, path)
            raise
        self._watch.wrote(f"{path}/schemata", made.identity, wanted.to_write().strip())
        if made.created:
            return lambda: self._remove(groups, key, path)
        return lambda: groups.ensure(group, applied.undo) if applied.undo else None

    def _fill(self, groups: rdt.Groups, group: rdt.GroupRef, spec: WorkloadSpec) -> Undo:
        filled = groups.fill(group, self._cgroups.group(spec.cgroup).threads)
        self._foreign[spec.name] = filled.left_to_others
        before = self._placed.get(spec.name)
        self._placed[spec.name] = group
        return lambda: self._unfill(groups, spec.name, filled.moved, before)

    def _unfill(
        self, groups: rdt.Groups, name: str, moved: frozenset[int], before: rdt.GroupRef | None
    ) -> None:
        groups.release(moved)
        if before is None:
            self._placed.pop(name, None)
        else:
            self._placed[name] = before

    def _remove(self, groups: rdt.Groups, key: str, path: str) -> None:
        groups.remove(groups.control(key), with_others_monitors=True)
        self._members.pop(key, None)
        group = groups.control(key)
        for name in [name for name, placed in list(self._placed.items()) if placed == group]:
            self._placed.pop(name, None)
        self._watch.forget(f"{path}/schemata")
        with suppress(KernelError):  # the journal then still names a group that is gone
            self._journal.close_out([path])

    # -- giving back ---------------------------------------------------------------------------------------------

    def release(self, names: frozenset[str], specs: Mapping[str, WorkloadSpec]) -> None:
        """Take these workloads out of their groups; a group that is then empty is removed.

        Raises:
            KernelError: it could not be done.
        """
        for name in names:
            self._foreign.pop(name, None)
        groups = self._found
        if not isinstance(groups, rdt.Groups):
            return
        try:
            for key, members in list(self._members.items()):
                left = members - names
                if left == members:
                    continue
                if not left:
                    self._remove(groups, key, groups.resctrl.access.path(groups.control(key).relative))
                    continue
                for name in members - left:
                    if name in specs:
                        self._release(groups, name, self._cgroups.group(specs[name].cgroup).threads)
                self._members[key] = left
        except rdt.ResctrlError as exc:
            raise as_kernel_error(exc) from exc

    def _made(self) -> list[Original]:
        return [entry for entry in self._journal.originals.values() if is_group(entry)]


def is_group(entry: Original) -> bool:
    """True for a journal entry that stands for a resctrl group which perphd made."""
    return entry.knob in RESCTRL_SETTINGS and entry.path.rsplit("/", 1)[1].startswith(f"{PREFIX}.")


def _value(target: Settings) -> Value:
    """What is wanted of both settings, as one value to remember a refusal by."""
    masks, pct = target.llc_masks, target.mba_pct
    return (() if masks is KEEP else masks) + (() if pct is KEEP else pct)


def _asks(target: Settings) -> bool:
    return any(getattr(target, setting) is not KEEP for setting in RESCTRL_SETTINGS)
