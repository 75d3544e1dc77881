"""Collects the input of a plan: every wanted setting as read back, or the reason why perphd leaves it alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from posixpath import basename, dirname
from typing import Any, TypeAlias

from perphd.domain.allocation import KEEP, NO_LIMIT, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, KernelError, ParseError
from perphd.domain.plan import Key, NotEnforceable, Stage, Write
from perphd.domain.quick import maker
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.group import Cgroup, Cgroups, Knob, partitions_in
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.cgroup.knobs import (
    CONTROLLERS,
    LIST_SETTINGS,
    PROTECTIONS,
    Value,
    decode_limit,
)
from perphd.host.containers import in_kubernetes
from perphd.host.fs import KernelFs, read_text
from perphd.host.kubelet import Kubelet
from perphd.isolation.backends import Backends
from perphd.isolation.backends.cgroupfs import is_gone_disk
from perphd.isolation.ceilings import CEILINGS, Ceilings, read_use
from perphd.isolation.descendants import DescendantList
from perphd.isolation.knob_states import KnobStates, value_in_force
from perphd.isolation.planner import FileState, KnobReading, Wanted, attainable
from perphd.isolation.readback import ReadBack
from perphd.isolation.reclaim import RECLAIM
from perphd.isolation.refusals import Refusals
from perphd.isolation.watch import ConflictWatch

Refuse: TypeAlias = Callable[[str], str | None]
"""Maps a cgroup path to the reason why its files must not be written directly (a systemd unit), or None."""
BELOW_S = 60.0
"""Seconds between checks of the descendants of a confined cgroup (v1); each descendant costs 45 us."""
_make_state, _make_wanted = maker(KnobReading), maker(Wanted)


class Survey:
    """Surveys workloads for successive plans. Reads the kernel, never writes it.

    ``planned``: the plan's knobs with their targets. ``limited``: knobs that will be only partly in force, with the
    reason. ``reclaims``: memory reclaim requests. ``stuck``: LRAs on CPUs or memory nodes assigned by perphd that
    cannot be changed now. ``exact``: workloads whose ceiling reaches its target in one step, for a trial.
    ``unrecorded``: descendants' lists (cgroup v1) to be recorded when their knobs are written. ``adopted``: files whose
    present values replace their recorded originals when they are written.

    ``refuse`` is called for every workload that is to be changed.
    """

    def __init__(
        self,
        fs: KernelFs,
        backends: Backends,
        cgroups: Cgroups,
        hierarchies: Hierarchies,
        read: ReadBack,
        watch: ConflictWatch,
        knobs: KnobStates,
        refusals: Refusals,
        refuse: Refuse | None,
        kubelet: Kubelet | None = None,
    ) -> None:
        self._fs, self._backends, self._cgroups, self._hierarchies = fs, backends, cgroups, hierarchies
        self._read, self._watch, self._knobs, self._refuse = read, watch, knobs, refuse
        self._refusals, self._kubelet = refusals, kubelet
        self._claimed: set[str] = set()
        self._places: dict[str, tuple[tuple[str, str], ...]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._partitions: dict[str, dict[str, CpuSet]] = {}
        self._ceilings = Ceilings()
        self._now_s = 0.0
        self._below_s, self._below_due = -math.inf, False
        self._held: Container[str] = ()
        self.exact: Container[str] = ()
        self._thorough = False
        self.planned: dict[Key, tuple[Knob, Value]] = {}
        self.limited: list[NotEnforceable] = []
        self.reclaims: list[Write] = []
        self.stuck: list[str] = []
        self.unrecorded: dict[Key, tuple[DescendantList, ...]] = {}
        self.adopted: set[str] = set()

    def begin(
        self,
        claimed: Iterable[str],
        changed: Iterable[tuple[str, str]],
        now_s: float,
        held: Container[str] = (),
        thorough: bool = False,
    ) -> None:
        """Start a new plan.

        ``claimed``: cgroups of all workloads. ``changed``: (directory, knob) of all originals. ``held``: workloads
        whose settings are not restored. ``thorough``: look at descendants even of groups that have their target.
        """
        self._held, self._thorough = held, thorough
        self._claimed, self._changed, self._now_s = set(claimed), set(changed), now_s
        self._places = {cgroup: known for cgroup, known in self._places.items() if cgroup in self._claimed}
        self._below_due = not 0 <= now_s - self._below_s < BELOW_S
        if self._below_due:
            self._below_s = now_s
        self.planned.clear()
        self.unrecorded, self.adopted = {}, set()
        self.limited, self.reclaims, self.stuck = [], [], []
        self._partitions.clear()
        self._read.begin(self._claimed)

    def forget(self, workload: str) -> None:
        """Forget the ceiling steps of a removed workload."""
        for setting in CEILINGS:
            self._ceilings.forget((workload, setting))

    def why_closed(self, group: Cgroup) -> str:
        """The reason why this cgroup cannot be changed; empty if it can."""
        if not group.exists():
            return f"the cgroup {group.path} does not exist"
        return (None if self._refuse is None else self._refuse(group.path)) or ""

    def look(self, spec: WorkloadSpec, target: Settings) -> list[Wanted | NotEnforceable]:
        """The settings of this workload that are wanted or must be restored, with their state."""
        items: list[Wanted | NotEnforceable] = []
        active: list[str] = []
        passive: list[str] = []
        for place in self._places_of(spec.cgroup):
            setting = place[1]
            wanted = place in self._changed or getattr(target, setting) is not KEEP
            (active if wanted else passive).append(setting)
        self._knobs.drop(spec.name, *passive)
        if not active:
            return items
        group = self._cgroups.group(spec.cgroup)
        if not self._read.is_there(group, active):
            self._knobs.drop(spec.name, *active)
            return items
        reason = None if self._refuse is None else self._refuse(spec.cgroup)
        for setting in active:
            value: Value = getattr(target, setting)
            failed = reason is not None
            try:
                item = reason or self._one(spec, group, setting, value)
            except KernelError as exc:
                if isinstance(exc, Gone) and not group.exists():
                    continue
                item, failed = str(exc), True
            if isinstance(item, Wanted):
                items.append(item)
            elif item:
                if value is not KEEP:
                    items.append(NotEnforceable(spec.name, setting, item))
                elif failed and self._is_changed(spec, setting):
                    items.append(NotEnforceable(spec.name, setting, f"not restored: {item}"))
                if self.is_bound(spec, setting):
                    self.stuck.append(spec.name)
        return items

    def _places_of(self, cgroup: str) -> tuple[tuple[str, str], ...]:
        """(directory, setting) of every setting of this cgroup."""
        known = self._places.get(cgroup)
        if known is None:
            found = [(setting, self._hierarchies.of(name)) for setting, name in CONTROLLERS.items()]
            known = tuple(("" if tree is None else tree.path(cgroup), setting) for setting, tree in found)
            self._places[cgroup] = known
        return known

    def is_bound(self, spec: WorkloadSpec, setting: str) -> bool:
        """True for CPUs and memory nodes that perphd assigned to an LRA."""
        return spec.kind is Kind.LRA and setting in LIST_SETTINGS and self._is_changed(spec, setting)

    def _is_changed(self, spec: WorkloadSpec, setting: str) -> bool:
        """True if perphd has changed this setting and not restored it."""
        hierarchy = self._hierarchies.of(CONTROLLERS[setting])
        return hierarchy is not None and (hierarchy.path(spec.cgroup), setting) in self._changed

    def _one(self, spec: WorkloadSpec, group: Cgroup, setting: str, target: Value) -> Wanted | str:
        """The setting as read back with its target, or the reason why perphd leaves it alone (empty: not worth a
        report).
        """
        read = self._read.knob(group, setting)
        if isinstance(read, str):
            return read
        knob, identity, files = read
        key = (spec.name, setting)
        reason = ""
        if setting == "egress_max" and target is not KEEP:
            reason = self._backends.of(knob.paths[0]).why_not_now(knob.paths[0])
        if reason:
            for path in knob.paths:
                self._watch.forget(path)  # values lost with a removed device are not a conflict
            return reason
        around = self._read.around(knob.directory, knob.paths[0]) if setting in LIST_SETTINGS else ""
        is_kubelets = setting not in LIST_SETTINGS and in_kubernetes(spec.cgroup)
        owner_s = self._now_s if is_kubelets else None
        self._watch.look(key, identity, files, around if knob.version == 1 else "", owner_s)
        if is_kubelets:
            files = self._with_kubelets(files)
        record = self._knobs.of(key)
        record.in_force = value_in_force(knob, files, around)
        if record.conflict is not None and record.conflict.yielded:
            return str(record.conflict)
        foreign = self._watch.is_foreign(*files)
        if target is KEEP and (foreign or spec.name in self._held):
            return ""
        if setting in PROTECTIONS and target is not KEEP:
            self._note_bound(key, knob, int(target))  # type: ignore[arg-type]
        wanted = target  # all steps towards a ceiling count as one target, although their texts differ
        if setting in CEILINGS:
            if target is not KEEP and (refused := self._refusals.why_not(key, target, self._now_s)):
                return refused  # make no step towards a refused target
            target = self._memory_target(key, knob, files[0], target)
        if setting in LIST_SETTINGS and isinstance(target, CpuSet) and self._kubelet is not None:
            if refused := self._kubelet.refusal(spec.cgroup, self._now_s):
                return refused
            if setting == "cpus":
                left = self._without_kubelets(key, target)
                if isinstance(left, str):
                    return left
                target = wanted = left
        if setting == "cpus" and knob.version == 2 and isinstance(target, CpuSet):
            left = self._without_partitions(key, knob, target, around)
            if isinstance(left, str):
                return left
            target = wanted = left
        if setting in ("io_max", "io_latency_us") and isinstance(target, tuple):
            target = wanted = self._on_present_disks(key, target)
        self.planned[key] = (knob, wanted)
        lra = not spec.gives_way  # batch that is paid for also gains first and loses last
        if setting not in LIST_SETTINGS:
            return _make_wanted(_make_state(spec.name, knob, files, lra=lra), target)
        if knob.version == 1:
            outer = next((path for path in _ancestors(spec.cgroup) if path in self._claimed), None)
            if outer is not None:
                what = "CPUs bind" if setting == "cpus" else "memory nodes bind"
                return f"{spec.cgroup} lies within the workload {outer}, whose {what} it on cgroup v1"
        state = _make_state(spec.name, knob, files, around, foreign, lra)
        if knob.version == 1:
            state = self._with_below(key, state, target)
        return _make_wanted(state, target)

    def _with_kubelets(self, files: tuple[FileState, ...]) -> tuple[FileState, ...]:
        """The files with kubelet's present values as their originals: a pod that was resized keeps its new size."""
        found = []
        for file in files:
            adopts = file.original is not None and self._watch.is_foreign(file)
            if adopts:
                self.adopted.add(file.path)
            found.append(replace(file, original=file.now) if adopts else file)
        return tuple(found)

    def _with_below(self, key: Key, state: KnobReading, target: Value) -> KnobReading:
        """The state with the group's descendants, if any of them may need a write.

        If the group has its target, descendants are checked only now and then: one may have been created during the
        change and have copied the old list.
        """
        attained = _is_attained(state, target)
        if attained and not (self._below_due or self._thorough):
            return state
        below = self._read.below(state.files[0])
        if attained and not self._thorough and not any(item.behind for item in below):
            return state  # do not overrule another program that changes a descendant's list meanwhile
        self.unrecorded[key] = tuple(item for item in below if not item.recorded)
        return replace(state, files=state.files + tuple(item.file for item in below))

    def _memory_target(self, key: Key, knob: Knob, file: FileState, target: Value) -> Value:
        """The ceiling to set now on the way to this target."""
        if target is KEEP or target is NO_LIMIT or not isinstance(target, int):
            self._ceilings.forget(key)
            return target
        if key[0] in self.exact and knob.setting == "memory_high_bytes":
            self._ceilings.forget(key)
            return target
        use = read_use(self._fs, knob.directory)
        now = decode_limit(file.now)
        if isinstance(use, str):
            self._limit(key, use)
            return KEEP if now is NO_LIMIT or target < now else target
        if knob.setting == "memory_max_bytes":
            aim = self._ceilings.max(
                decode_limit(read_text(self._fs, f"{knob.directory}/memory.high")), target, use
            )
        else:
            aim = self._ceilings.high(key, now, target, use, self._now_s)
        if aim.reason:
            self._limit(key, aim.reason)
        if aim.reclaim_bytes:
            path = f"{knob.directory}/{RECLAIM}"
            self.reclaims.append(Write(*key, path, str(aim.reclaim_bytes), "", Stage.SHRINK))
        return aim.value

    def _without_kubelets(self, key: Key, wanted: CpuSet) -> CpuSet | str:
        """These CPUs except those that kubelet assigned exclusively; or why none is left."""
        assert self._kubelet is not None
        theirs = self._kubelet.cpu_manager(self._now_s).exclusive & wanted
        if not theirs:
            return wanted
        reason = f"the kubelet has assigned the CPUs {theirs} exclusively to containers"
        if not wanted - theirs:
            return reason
        self._limit(key, f"without {theirs}: {reason}")
        return wanted - theirs

    def _without_partitions(self, key: Key, knob: Knob, wanted: CpuSet, around: str) -> CpuSet | str:
        """These CPUs except those of partition roots beside the group; or why none is left.

        The parent's list lacks the CPUs of partitions, so siblings are read only if a wanted CPU is not in it.
        """
        with suppress(ParseError):
            if wanted <= CpuSet.parse(around):
                return wanted
        parent, theirs = dirname(knob.directory), CpuSet()
        if parent not in self._partitions:
            self._partitions[parent] = partitions_in(self._fs, parent)
        for group, cpus in self._partitions[parent].items():
            theirs = theirs if group == knob.directory else theirs | cpus & wanted
        if not theirs:
            return wanted
        reason = f"the CPUs {theirs} belong to a partition (cpuset.cpus.partition) beside the group"
        if not wanted - theirs:
            return reason
        self._limit(key, f"without {theirs}: {reason}")
        return wanted - theirs

    def _on_present_disks(self, key: Key, wanted: tuple[Any, ...]) -> tuple[Any, ...]:
        """These limits or latency targets, without those of disks that are gone, which the kernel refuses."""
        numbers = [each.device if isinstance(each, IoLimit) else each[0] for each in wanted]
        gone = {number for number in numbers if is_gone_disk(self._fs, number)}
        if not gone:
            return wanted
        self._limit(
            key, f"without {', '.join(sorted(gone))}: there is no such disk now (lsblk -d shows the numbers)"
        )
        return tuple(each for number, each in zip(numbers, wanted, strict=True) if number not in gone)

    def _note_bound(self, key: Key, knob: Knob, wanted: int) -> None:
        """Report a protection that is capped by an ancestor's, which perphd may not set."""
        file, root = basename(knob.paths[0]), self._hierarchies.of("memory")
        directory = dirname(knob.directory)
        while root is not None and directory.startswith(f"{root.mount}/"):
            path = f"{directory}/{file}"
            with suppress(KernelError, ValueError):
                limit = decode_limit(read_text(self._fs, path))
                if limit is not NO_LIMIT and limit < wanted:
                    self._limit(
                        key, f"in effect only up to {path}, which is {limit}: protect that group as well"
                    )
                    return
            directory = dirname(directory)

    def _limit(self, key: Key, reason: str) -> None:
        self.limited.append(NotEnforceable(*key, reason))


def _is_attained(state: KnobReading, target: Value) -> bool:
    """True if the group has its target CPUs, so that its descendants need no check."""
    try:
        return isinstance(target, CpuSet) and CpuSet.parse(state.files[0].now) == attainable(state, target)
    except ParseError:
        return False


def _ancestors(cgroup: str) -> Iterable[str]:
    while (cgroup := dirname(cgroup)) != "/":
        yield cgroup
