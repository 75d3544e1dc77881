"""Lowers batch memory ceilings step by step, without causing an out-of-memory kill.

``memory.high`` is lowered in steps, never below the group's working set. If the kernel has ``memory.reclaim``, the
memory to be freed is first reclaimed in the background, and ``memory.high`` never goes below the present use. After
each step the group is watched for trouble: kills, hits of ``memory.max``, throttling together with stalls, or refaults
of the reclaimed pages. Trouble reverts the step and suspends further steps, with exponential backoff. ``memory.max`` is
set only above the present use and above ``memory.high``, which slows the group down long before it reaches
``memory.max``. Raising a ceiling is never delayed.

Pure decisions; callers pass in the time. Reads memory.current, .stat, .events and .pressure (cgroup-v2.rst, "Memory").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import KEEP, NO_LIMIT, Keep, Limit
from perphd.domain.backoff import BackoffRule
from perphd.domain.errors import KernelError
from perphd.domain.plan import Key
from perphd.domain.units import PAGE_BYTES, format_bytes
from perphd.host.fs import KernelFs, read_text

CEILINGS: Final = ("memory_high_bytes", "memory_max_bytes")
"""The settings that this module paces."""
STEP_SHARE: Final = 0.1
"""Share of the group's use by which one step lowers the ceiling."""
LEAST_STEP_BYTES: Final = 16 << 20
"""Smallest step in bytes."""
STEP_EVERY_S: Final = 5.0
"""Seconds between two steps, in which the effect of the first one shows."""
HOLD: Final = BackoffRule(60.0, 960.0)
"""Backoff of the next step after trouble, in seconds."""
STALLED_PCT: Final = 10.0
"""PSI memory "some avg10" in percent above which throttling counts as trouble."""
COMES_BACK_SHARE: Final = 0.5
"""Share of a step's bytes that counts as trouble if refaulted."""
MAX_MARGIN_SHARE: Final = 0.1
LEAST_MAX_MARGIN_BYTES: Final = 64 << 20
"""Margin of ``memory.max`` above use and ``memory.high``: a tenth of use, at least 64 MiB."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Content of a group's memory files.

    ``working_set_bytes``: use less inactive file pages. ``kill_events``: hits of memory.max and kills. ``stalled_pct``:
    PSI some, avg10. ``can_reclaim``: the group has ``memory.reclaim``.
    """

    current_bytes: int
    working_set_bytes: int
    high_events: int
    kill_events: int
    refault_bytes: int
    stalled_pct: float
    can_reclaim: bool


@dataclass(frozen=True, slots=True)
class Aim:
    """The value to set now.

    ``reason``: why it differs from the target; empty if it does not. ``reclaim_bytes``: the amount to request from
    ``memory.reclaim``.
    """

    value: Limit | Keep
    reason: str = ""
    reclaim_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    above: float
    to: float
    taken_bytes: float
    at_s: float
    use: MemoryUse


@dataclass(frozen=True, slots=True)
class _Hold:
    at: float
    until_s: float
    length_s: float
    reason: str


def read_use(fs: KernelFs, directory: str) -> MemoryUse | str:
    """The group's memory use, or the reason why it is unknown."""
    try:
        current = int(read_text(fs, f"{directory}/memory.current"))
        stat = _counters(read_text(fs, f"{directory}/memory.stat"))
        events = _counters(read_text(fs, f"{directory}/memory.events"))
    except (KernelError, ValueError) as exc:
        return f"no memory ceiling is set, because its memory use cannot be read: {exc}"
    return MemoryUse(
        current,
        max(0, current - stat.get("inactive_file", 0)),
        events.get("high", 0),
        sum(events.get(name, 0) for name in ("max", "oom", "oom_kill")),
        PAGE_BYTES * (stat.get("workingset_refault_anon", 0) + stat.get("workingset_refault_file", 0)),
        _stalled_pct(fs, directory),
        fs.exists(f"{directory}/memory.reclaim"),
    )


class Ceilings:
    """For every memory ceiling: the last step down, and the level below which it is not lowered for now."""

    def __init__(self) -> None:
        self._steps: dict[Key, _Step] = {}
        self._holds: dict[Key, _Hold] = {}

    def forget(self, key: Key) -> None:
        """Forget a ceiling that was removed, or whose group was replaced."""
        self._steps.pop(key, None)
        self._holds.pop(key, None)

    def high(self, key: Key, now: Limit, target: Limit, use: MemoryUse, now_s: float) -> Aim:
        """The next ``memory.high`` between ``now`` and ``target``."""
        at, goal = _number(now), _number(target)
        step = self._steps.get(key)
        if step is not None and step.to == at and (trouble := _trouble(step, use)):
            return self._relieve(key, step, use, trouble, now_s)
        hold = self._holds.get(key)
        if hold is not None and goal < hold.at and now_s < hold.until_s:
            return Aim(_limit(hold.at), hold.reason)
        if goal >= at or goal >= use.current_bytes + _step_bytes(use):
            if goal > at:
                self._steps.pop(key, None)
            return Aim(target)
        return self._descend(key, at, goal, use, now_s)

    def _descend(self, key: Key, at: float, goal: float, use: MemoryUse, now_s: float) -> Aim:
        on_the_way = f"being lowered to {format_bytes(goal)} in steps"
        step = self._steps.get(key)
        if step is not None and step.to == at and now_s - step.at_s < STEP_EVERY_S:
            return Aim(_limit(at), on_the_way)
        size = _step_bytes(use)
        least = max(goal, use.working_set_bytes)
        lower = float(_pages_up(max(least, use.current_bytes - (0 if use.can_reclaim else size))))
        reclaim = 0
        if use.can_reclaim and use.current_bytes - least >= LEAST_STEP_BYTES:
            reclaim = int(min(size, use.current_bytes - least))
        if at - lower < LEAST_STEP_BYTES and lower != goal:
            lower = at
        if lower >= at and not reclaim:
            works = f"its working set is {format_bytes(use.working_set_bytes)}"
            return Aim(_limit(at), f"held at {_shown(at)} above {format_bytes(goal)}: {works}")
        lower = min(lower, at)
        taken = max(reclaim, use.current_bytes - lower)
        self._steps[key] = _Step(at, lower, taken, now_s, use)
        return Aim(_limit(lower), "" if lower == goal else on_the_way, reclaim)

    def _relieve(self, key: Key, step: _Step, use: MemoryUse, trouble: str, now_s: float) -> Aim:
        before = self._holds.get(key)
        is_recent = before is not None and now_s - before.until_s <= HOLD.longest_s
        length_s = HOLD.after(before.length_s if before is not None and is_recent else 0.0)
        above = step.above if math.isfinite(step.above) else 0.0
        up = float(_pages_up(max(above, use.current_bytes + _step_bytes(use))))
        reason = f"raised to {format_bytes(up)} and held for {length_s:g} s: {trouble}"
        self._steps[key] = _Step(up, up, 0.0, now_s, use)
        self._holds[key] = _Hold(up, now_s + length_s, length_s, reason)
        return Aim(_limit(up), reason)

    @staticmethod
    def max(high: Limit, target: Limit, use: MemoryUse) -> Aim:
        """The lowest ``memory.max`` at which ``memory.high`` still slows the group down before a kill."""
        if target is NO_LIMIT:
            return Aim(target)
        if high is NO_LIMIT:
            return Aim(KEEP, "no memory.high is in force to slow the group down before memory.max kills")
        margin = max(LEAST_MAX_MARGIN_BYTES, int(use.current_bytes * MAX_MARGIN_SHARE))
        least = _pages_up(max(use.current_bytes, high) + margin)
        if target >= least:
            return Aim(target)
        return Aim(
            least, f"kept {format_bytes(margin)} above use and memory.high, to avoid an out-of-memory kill"
        )


def _trouble(step: _Step, use: MemoryUse) -> str:
    """The trouble seen since the last step; empty if there is none."""
    if use.kill_events > step.use.kill_events:
        return "memory.max was hit or a process was killed since the last step"
    throttled = use.high_events - step.use.high_events
    if throttled > 0 and use.stalled_pct > STALLED_PCT:
        return f"throttled {throttled} times, with {use.stalled_pct:g} % of the time stalled on memory"
    back = use.refault_bytes - step.use.refault_bytes
    if step.taken_bytes > 0 and back > COMES_BACK_SHARE * step.taken_bytes:
        return f"{format_bytes(back)} of the {format_bytes(step.taken_bytes)} reclaimed by the last step were refaulted"
    return ""


def _step_bytes(use: MemoryUse) -> float:
    return max(float(LEAST_STEP_BYTES), STEP_SHARE * use.current_bytes)


def _counters(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}


def _stalled_pct(fs: KernelFs, directory: str) -> float:
    """PSI some avg10 in percent; 0 if the kernel has no PSI."""
    try:
        first = read_text(fs, f"{directory}/memory.pressure").split()
        return float(next(word for word in first if word.startswith("avg10=")).removeprefix("avg10="))
    except (KernelError, ValueError, StopIteration):
        return 0.0


def _number(limit: Limit) -> float:
    return math.inf if limit is NO_LIMIT else float(limit)


def _limit(number: float) -> Limit:
    return NO_LIMIT if math.isinf(number) else int(number)


def _pages_up(count: float) -> int:
    return -(-int(count) // PAGE_BYTES) * PAGE_BYTES


def _shown(number: float) -> str:
    return "no limit" if math.isinf(number) else format_bytes(number)
