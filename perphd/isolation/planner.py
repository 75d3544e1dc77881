"""Turns a wanted state into ordered writes: a pure function of values read back and originals.

Order: batch is demoted and shrunk, LRAs grow, batch grows, LRAs are narrowed. An LRA that is to get exclusive cores
thus keeps its wider, shared set until the cores are free, and regains the wider set before others return. A crash at
any point leaves no LRA worse off than before. Parents of nested groups are widened before their children, and children
narrowed before their parents. The old and new values decide whether a write shrinks or grows. A setting that is KEEP
restores the original if perphd had changed it. Without a difference there is no write.

The operator's own settings are bounds: CPUs and memory nodes are never widened beyond them, a weight or ceiling is
never raised above them, a protection never lowered below them, and a frozen group stays frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from posixpath import basename, dirname

from perphd.domain.allocation import DEFAULT_WEIGHT, KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError
from perphd.domain.plan import ChangeSet, NotEnforceable, Stage, Write
from perphd.domain.quick import maker
from perphd.host.cgroup import lines
from perphd.host.cgroup.group import Knob, encode
from perphd.host.cgroup.knobs import PROTECTIONS, Value, is_frozen, magnitude, same


@dataclass(frozen=True, slots=True)
class FileState:
    """One file with its present text, and its original if perphd has changed it (else None)."""

    path: str
    now: str
    original: str | None = None


@dataclass(frozen=True, slots=True)
class KnobReading:
    """One setting of one workload as read back.

    ``files``: the files of ``knob`` in its order; for a v1 cpuset, the lists of all descendants follow, parents
    first. ``around``: the parent's CPUs as text (cpuset only). ``foreign``: another program has changed the value since
    perphd did, so the original is not restored. ``lra``: the workload is an LRA.
    """

    workload: str
    knob: Knob
    files: tuple[FileState, ...]
    around: str = ""
    foreign: bool = False
    lra: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A setting as read back, with its target."""

    state: KnobReading
    target: Value


_make_write = maker(Write)


class _Impossible(Exception):
    """A target that cannot be set here; the text is the reason."""


class _Pinned(_Impossible):
    """The operator's own setting excludes the whole target."""


def plan(wanted: Iterable[Wanted], skipped: Iterable[NotEnforceable] = (), reason: str = "") -> ChangeSet:
    """The change set that leads to the wanted state; targets without a valid value are added to ``skipped``."""
    made: list[_Made] = []
    left_out = list(skipped)
    for item in wanted:
        writes: list[Write] = []
        try:
            writes = _PLANNERS.get(item.state.knob.setting, _plan_limit)(item.state, item.target)
        except (ParseError, _Impossible) as exc:
            left_out.append(NotEnforceable(item.state.workload, item.state.knob.setting, str(exc)))
            if isinstance(exc, _Pinned) and not item.state.foreign:
                writes = _plan_list(item.state, KEEP)  # restore the changes of an earlier target
        made.append(_Made(item.state.knob.directory.count("/"), item.state.lra, writes))
    return ChangeSet(tuple(_ordered(made)), tuple(left_out), reason)


@dataclass(frozen=True, slots=True)
class _Made:
    depth: int
    lra: bool
    writes: list[Write]


_LOSE, _GAIN = (Stage.DEMOTE, Stage.SHRINK), (Stage.GROW, Stage.PROMOTE)


def _ordered(made: Sequence[_Made]) -> Iterator[Write]:
    """Batch loses, LRAs gain, batch gains, LRAs lose. Children are narrowed before their parents."""
    outer_first = sorted((item for item in made if item.writes), key=lambda item: item.depth)
    inner_first = sorted((item for item in made if item.writes), key=lambda item: -item.depth)
    for lra, stages in ((False, _LOSE), (True, _GAIN), (False, _GAIN), (True, _LOSE)):
        for stage in stages:
            for item in inner_first if stage in _LOSE else outer_first:
                if item.lra is lra:
                    yield from (write for write in item.writes if write.stage is stage)


def _write(state: KnobReading, path: str, value: str, before: str, stage: Stage) -> Write:
    return _make_write(state.workload, state.knob.setting, path, value, before, stage)


def _plan_limit(state: KnobReading, target: Value) -> list[Write]:
    """Plan a limit or protection held in one file."""
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


def _plan_lines(state: KnobReading, target: Value) -> list[Write]:
    """Plan a weight, ceilings or latency targets by disk, in one file or (v1) one per kind of ceiling."""
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


def _plan_freeze(state: KnobReading, target: Value) -> list[Write]:
    """Plan freezing (first) and thawing (last). A group that was found frozen stays frozen."""
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


def _plan_weight(state: KnobReading, target: Value) -> list[Write]:
    """Plan weight and idle; idle is cleared first, since clearing resets the weight.

    The weight never exceeds the original, except to grant a floor.
    """
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
        if wanted_weight is not None and not found_idle and (state.lra or not for_floor):
            bound = max if for_floor else min  # a guarantee to an LRA never lowers its previous one
            wanted_weight = bound(
                wanted_weight, _found(weight), key=lambda text: magnitude(weight.path, text)
            )
    is_idle = idle is not None and idle.now == "1"
    becomes_idle = is_idle if wanted_idle is None else wanted_idle == "1"
    if becomes_idle:
        # The weight of an idle group cannot be written and has no effect.
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


def _plan_list(state: KnobReading, target: Value) -> list[Write]:
    """Plan the CPUs or memory nodes of a group; on v1 also of its descendants, whose lists must lie within the
    group's.
    """
    root = state.files[0]
    around = CpuSet.parse(state.around)
    if target is KEEP and all(file.original is None for file in state.files):
        return []
    if target is KEEP and root.original == "":
        # The group had no list of its own originally. A populated group cannot return to that; the parent's whole list
        # is equivalent.
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
        # An LRA first gets old and new CPUs together, and loses the old ones at the very end.
        move(order, {path: now[path] | wanted[path] for path in order}, Stage.GROW)
        move(reversed(order), wanted, Stage.SHRINK)
    elif all(common.values()):
        move(reversed(order), common, Stage.SHRINK)
        move(order, wanted, Stage.GROW)
    else:
        if len(order) > 1:
            # The old and new sets have no CPU in common, so parents must hold both while their children move.
            move(order, {path: now[path] | wanted[path] for path in order}, Stage.GROW)
        move(reversed(order), wanted, Stage.GROW)
    return writes


def _wanted_list(state: KnobReading, target: Value, around: CpuSet) -> dict[str, CpuSet]:
    """CPUs by path: the target (or original) for the group, and as much of their originals as fits for descendants."""
    root, *below = state.files
    noun = "CPUs" if state.knob.setting == "cpus" else "memory nodes"
    if isinstance(target, CpuSet):
        cpus = CpuSet.parse(encode(state.knob, target, {})[root.path])
        if around and not cpus & around:
            raise _Impossible(
                f"none of the {noun} {cpus} is among {around}, the only ones that {dirname(state.knob.directory)} has"
            )
        cpus = attainable(state, cpus)
        if not cpus:
            raise _Pinned(f"the operator pinned it to {_found_list(root)}, which has none of {target}")
    else:
        cpus = _found_list(root)
        if (
            state.knob.version == 1
        ):  # v1 refuses offline CPUs: restore those online now, and the rest when they return
            cpus = cpus & around or cpus
    wanted = {root.path: cpus}
    for file in below:
        parent = wanted[f"{dirname(dirname(file.path))}/{basename(root.path)}"]
        wanted[file.path] = _found_list(file) & parent or parent
    return wanted


def attainable(state: KnobReading, wanted: CpuSet) -> CpuSet:
    """The part of these CPUs that the group may have: those of its original list, or any if it had none."""
    found, around = _found_list(state.files[0]), CpuSet.parse(state.around)
    cpus = wanted & found if found else wanted
    # v2 intersects with the parent's list by itself; v1 refuses CPUs that the parent lacks.
    return cpus & around if around and state.knob.version == 1 else cpus


def _found_list(file: FileState) -> CpuSet:
    """The CPUs that perphd found in this file."""
    return CpuSet.parse(_found(file))


def _found(file: FileState) -> str:
    """The text that perphd found in this file."""
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
