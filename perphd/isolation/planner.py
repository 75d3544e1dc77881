"""From a wanted state to ordered writes: pure, a function of what was read back and what the originals are.

Order: batch is demoted and shrunk, LRAs grow, batch grows, LRAs are narrowed. So an LRA that is to have cores of its
own shares more than those until they are its own, and has more than those back before others come: whoever is killed
in between leaves no LRA worse off than if nothing had been done. Of nested groups parents are widened before children
and children narrowed before parents. Whether a write shrinks or grows is told from the old and the new value. A setting
that is KEEP gives the original back where perphd had changed it. No difference: no write.
What the operator had set is a bound: CPUs and memory nodes are never widened beyond those found, a weight or ceiling is
never raised above it, a protection never lowered below it, and what was frozen stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from posixpath import basename, dirname

from perphd.domain.allocation import DEFAULT_WEIGHT, KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError
from perphd.domain.plan import ChangeSet, NotEnforceable, Stage, Write
from perphd.domain.quick import maker
from perphd.host.cgroup import lines
from perphd.host.cgroup.group import Knob, encode
from perphd.host.cgroup.knobs import LIST_SETTINGS, PROTECTIONS, Value, is_frozen, magnitude, same


@dataclass(frozen=True, slots=True)
class FileState:
    """One file: what it reads now, and its original if perphd has changed it (else None)."""

    path: str
    now: str
    original: str | None = None


@dataclass(frozen=True, slots=True)
class KnobState:
    """One setting of one workload as read back.

    ``files``: those of ``knob`` in its order; for a v1 cpuset then the ``cpuset.cpus`` of all groups below it, parents
    before children. ``around``: the CPUs that the parent gives, as text (cpuset only). ``foreign``: somebody else has
    changed it since perphd did, so that the original is no longer the value to go back to. ``lra``: it is an LRA's.
    """

    workload: str
    knob: Knob
    files: tuple[FileState, ...]
    around: str = ""
    foreign: bool = False
    lra: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A setting as read back and what it is to become."""

    state: KnobState
    target: Value


_make_write = maker(Write)


class _Impossible(Exception):
    """A wanted value that cannot be had here; the text is the reason."""


class _Pinned(_Impossible):
    """The operator's own setting leaves nothing of the wanted one."""


def plan(wanted: Iterable[Wanted], skipped: Iterable[NotEnforceable] = (), reason: str = "") -> ChangeSet:
    """The change set that leads to the wanted state; values that cannot be stated join ``skipped``."""
    made: list[_Made] = []
    left_out = list(skipped)
    for item in wanted:
        writes: list[Write] = []
        try:
            writes = _PLANNERS.get(item.state.knob.setting, _plan_limit)(item.state, item.target)
        except (ParseError, _Impossible) as exc:
            left_out.append(NotEnforceable(item.state.workload, item.state.knob.setting, str(exc)))
            if isinstance(exc, _Pinned) and not item.state.foreign:
                writes = _plan_list(item.state, KEEP)  # what an earlier target took goes back
        made.append(_Made(item.state.knob.directory.count("/"), item.state.lra, writes))
    return ChangeSet(tuple(_ordered(made)), tuple(left_out), reason)


def unless_stuck(
    changes: ChangeSet, left_out: Iterable[NotEnforceable], lras: Container[str], stuck: Collection[str]
) -> ChangeSet:
    """CPUs of an LRA's own are a promise of two sides: without one of them the other is not kept either.

    Nobody else gains CPUs while an LRA cannot be moved off those that it was given, and no LRA is narrowed while
    somebody else cannot be confined: it would share what is left with them.

    Args:
        changes: a plan.
        left_out: what cannot be set at all, of any workload.
        lras: names of all LRAs.
        stuck: those of them on CPUs or memory nodes that perphd gave them and cannot change now.
    """
    loose = [left for left in left_out if left.knob == "cpus" and left.workload not in lras]
    waits_for = ", ".join(dict.fromkeys(stuck))
    reasons: dict[Write, str] = {}
    for write in changes.writes:
        if write.knob not in LIST_SETTINGS:
            continue
        if stuck and write.stage is Stage.GROW and write.workload not in stuck:
            reasons[write] = f"waits for {waits_for}: what was set there cannot be changed now"
        elif loose and write.stage is Stage.SHRINK and write.workload in lras:
            reasons[write] = f"not confined while {loose[0].workload} is not: {loose[0].reason}"
    if not reasons:
        return changes
    told = dict.fromkeys(NotEnforceable(*write.key, why) for write, why in reasons.items())
    kept = tuple(write for write in changes.writes if write not in reasons)
    return ChangeSet(kept, (*changes.skipped, *told), changes.reason)


@dataclass(frozen=True, slots=True)
class _Made:
    depth: int
    lra: bool
    writes: list[Write]


_LOSE, _GAIN = (Stage.DEMOTE, Stage.SHRINK), (Stage.GROW, Stage.PROMOTE)


def _ordered(made: Sequence[_Made]) -> Iterator[Write]:
    """Batch loses, LRAs gain, batch gains, LRAs lose. What lies deeper is narrowed before what it lies in."""
    outer_first = sorted((item for item in made if item.writes), key=lambda item: item.depth)
    inner_first = sorted((item for item in made if item.writes), key=lambda item: -item.depth)
    for lra, stages in ((False, _LOSE), (True, _GAIN), (False, _GAIN), (True, _LOSE)):
        for stage in stages:
            for item in inner_first if stage in _LOSE else outer_first:
                if item.lra is lra:
                    yield from (write for write in item.writes if write.stage is stage)


def _write(state: KnobState, path: str, value: str, before: str, stage: Stage) -> Write:
    return _make_write(state.workload, state.knob.setting, path, value, before, stage)


def _plan_limit(state: KnobState, target: Value) -> list[Write]:
    """A limit or protection in one file."""
    lead = state.files[0]
    if target is KEEP:
        text = lead.original
    else:
        text = encode(state.knob, target, {file.path: file.now for file in state.files})[lead.path]
        bound = max if state.knob.setting in PROTECTIONS else min
        text = bound(_found(lead), text, key=lambda text: magnitude(lead.path, text))
    if text is None or same(lead.path, text, lead.now):
        return []
    grows = magnitude(lead.path, text) > magnitude(lead.path, lead.now)
    return [_write(state, lead.path, text, lead.now, Stage.GROW if grows else Stage.SHRINK)]


def _plan_lines(state: KnobState, target: Value) -> list[Write]:
    """A weight, ceilings or latency targets by disk, in one file or (v1) one for each kind of ceiling."""
    found = {file.path: _found(file) for file in state.files}
    texts = found if target is KEEP else encode(state.knob, target, found)
    writes: list[Write] = []
    for file in state.files:
        text = texts[file.path]
        if same(file.path, text, file.now) or (target is KEEP and file.original is None):
            continue
        if lines.is_keyed(file.path):
            tighter = lines.tightens(file.path, text, file.now)
        else:
            text = min(found[file.path], text, key=int)
            tighter = magnitude(file.path, text) < magnitude(file.path, file.now)
            if text == file.now:
                continue
        writes.append(_write(state, file.path, text, file.now, Stage.SHRINK if tighter else Stage.GROW))
    return writes


def _plan_freeze(state: KnobState, target: Value) -> list[Write]:
    """Freeze at once, thaw last. What was found frozen is its operator's to thaw."""
    lead = state.files[0]
    if target is True and not is_frozen(_found(lead)):
        text = encode(state.knob, True, {})[lead.path]
    elif lead.original is None:
        return []
    else:
        text = lead.original
    if same(lead.path, text, lead.now):
        return []
    return [_write(state, lead.path, text, lead.now, Stage.DEMOTE if is_frozen(text) else Stage.PROMOTE)]


def _plan_weight(state: KnobState, target: Value) -> list[Write]:
    """Weight and idle: idle goes first, since it resets the weight. Never more than was found, but for a floor."""
    weight, *rest = state.files
    idle = rest[0] if rest else None
    for_floor = isinstance(target, int) and target > DEFAULT_WEIGHT
    found_idle = idle is not None and _found(idle) == "1" and not for_floor
    if target is KEEP:
        wanted_weight = weight.original
        wanted_idle = None if idle is None else idle.original
    else:
        texts = encode(state.knob, target, {})
        wanted_weight = texts.get(weight.path)
        wanted_idle = None if idle is None else "1" if found_idle else texts[idle.path]
        if wanted_weight is not None and not found_idle and not for_floor:
            wanted_weight = min(wanted_weight, _found(weight), key=lambda text: magnitude(weight.path, text))
    is_idle = idle is not None and idle.now == "1"
    becomes_idle = is_idle if wanted_idle is None else wanted_idle == "1"
    if becomes_idle:
        # While idle the weight cannot be written, and needs not: the kernel gives the group its own.
        if is_idle or idle is None:
            return []
        return [_write(state, idle.path, "1", idle.now, Stage.DEMOTE)]
    if is_idle and idle is not None:
        writes = [_write(state, idle.path, "0", idle.now, Stage.PROMOTE)]
        if wanted_weight is not None:
            writes.append(_write(state, weight.path, wanted_weight, weight.now, Stage.PROMOTE))
        return writes
    if wanted_weight is None or same(weight.path, wanted_weight, weight.now):
        return []
    rises = magnitude(weight.path, wanted_weight) > magnitude(weight.path, weight.now)
    return [_write(state, weight.path, wanted_weight, weight.now, Stage.PROMOTE if rises else Stage.DEMOTE)]


def _plan_list(state: KnobState, target: Value) -> list[Write]:
    """The CPUs, or memory nodes, of a group; on v1 also of every group below it, whose own must lie within them."""
    root = state.files[0]
    around = CpuSet.parse(state.around)
    if target is KEEP and all(file.original is None for file in state.files):
        return []
    if target is KEEP and root.original == "":
        # No own CPUs originally. A populated group cannot go back to that; all CPUs of the parent are equal in effect.
        if root.now == "" or (around and around <= CpuSet.parse(root.now)):
            return []
        return [_write(state, root.path, "", root.now, Stage.GROW)]
    wanted = _wanted_list(state, target, around)
    now = {
        file.path: CpuSet.parse(file.now) if file.now or state.knob.version == 1 else around
        for file in state.files
    }
    order = [file.path for file in state.files]
    if all(now[path] == wanted[path] for path in order):
        return []
    shown = {file.path: file.now for file in state.files}
    writes: list[Write] = []

    def move(paths: Iterable[str], to: dict[str, CpuSet], stage: Stage) -> None:
        for path in paths:
            if now[path] != to[path]:
                writes.append(_write(state, path, str(to[path]), shown[path], stage))
                now[path], shown[path] = to[path], str(to[path])

    common = {path: now[path] & wanted[path] for path in order}
    if state.lra:
        # It loses nothing before it has everything: first the old and the new CPUs, at the very end the new ones.
        move(order, {path: now[path] | wanted[path] for path in order}, Stage.GROW)
        move(reversed(order), wanted, Stage.SHRINK)
    elif all(common.values()):
        move(reversed(order), common, Stage.SHRINK)
        move(order, wanted, Stage.GROW)
    else:
        if len(order) > 1:
            # Nothing in common: parents must hold the old and the new CPUs while their children move.
            move(order, {path: now[path] | wanted[path] for path in order}, Stage.GROW)
        move(reversed(order), wanted, Stage.GROW)
    return writes


def _wanted_list(state: KnobState, target: Value, around: CpuSet) -> dict[str, CpuSet]:
    """CPUs by path: the target (or original) for the group, for those below as much of their original as fits."""
    root, *below = state.files
    noun = "CPUs" if state.knob.setting == "cpus" else "memory nodes"
    if isinstance(target, CpuSet):
        cpus = CpuSet.parse(encode(state.knob, target, {})[root.path])
        if around and not cpus & around:
            raise _Impossible(
                f"none of the {noun} {cpus} is among {around}, all that {dirname(state.knob.directory)} has"
            )
        cpus = attainable(state, cpus)
        if not cpus:
            raise _Pinned(f"the operator pinned it to {_found_list(root)}, which does not meet {target}")
    else:
        cpus = _found_list(root)
        if (
            state.knob.version == 1
        ):  # v1 takes nothing that is switched off: the rest goes back, and that when it is on
            cpus = cpus & around or cpus
    wanted = {root.path: cpus}
    for file in below:
        parent = wanted[f"{dirname(dirname(file.path))}/{basename(root.path)}"]
        wanted[file.path] = _found_list(file) & parent or parent
    return wanted


def attainable(state: KnobState, wanted: CpuSet) -> CpuSet:
    """What of these CPUs the group may be given: those found on it (all, if it had none of its own); may be empty."""
    found, around = _found_list(state.files[0]), CpuSet.parse(state.around)
    cpus = wanted & found if found else wanted
    # Within the parent's: what v2 does by itself, while v1 refuses CPUs that the parent lacks.
    return cpus & around if around and state.knob.version == 1 else cpus


def _found_list(file: FileState) -> CpuSet:
    """The CPUs that perphd found in this file."""
    return CpuSet.parse(_found(file))


def _found(file: FileState) -> str:
    """What perphd found in this file."""
    return file.now if file.original is None else file.original


_PLANNERS = {
    "cpu_weight": _plan_weight,
    "cpus": _plan_list,
    "mems": _plan_list,
    "io_weight": _plan_lines,
    "io_max": _plan_lines,
    "io_latency_us": _plan_lines,
    "egress_max": _plan_lines,
    "frozen": _plan_freeze,
}
