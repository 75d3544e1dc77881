"""Heracles (Lo et al., ISCA 2015): one latency-critical service, everything else is one best-effort class.

Top loop, every 15 s: a negative slack disables best effort and starts a cooldown of 5 minutes. A load above 85 % of the
peak also disables it, without a cooldown; a load below 80 % enables it again. A slack below 10 % forbids growth, and a
slack below 5 % leaves it two cores. Core and memory loop, every 2 s: while DRAM traffic is above 90 % of its peak,
cores are taken from best effort; otherwise best effort may grow by one unit: by cache ways as long as that lowers the
traffic and helps it, then by cores as long as slack is above 10 %.

``literal`` keeps the order of the printed if/elif chain, in which a load below 80 % hides the tests for little slack,
and knows a single service: further LRAs count as best effort (they are never frozen, but get its cores and ways).
The corrected variant tests slack first and treats all LRAs as the service, with the worst slack.

The power loop (frequencies) and the network loop are omitted, because their settings are not available. The service's
present traffic replaces the offline model of its traffic. The operator gives peak load and peak traffic; an unknown
load counts as low, and an unknown peak traffic as never reached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from perphd.admission.context import batches, lras
from perphd.domain.allocation import Settings
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.reading import available, value_or
from tools.bench.policies.peers.units import Units, capacity, settings_of, slack

TOP_PERIOD_S: Final = 15.0
CORE_PERIOD_S: Final = 2.0
COOL_DOWN_S: Final = 300.0
LOAD_OFF: Final = 0.85
LOAD_ON: Final = 0.80
GROW_SLACK: Final = 0.10
CUT_SLACK: Final = 0.05
DRAM_LIMIT: Final = 0.90
START_WAYS_SHARE: Final = 0.10
BENEFIT: Final = 0.01
"""Relative growth of best effort's instruction rate from which a way helps (the paper gives no figure)."""


class Growth(StrEnum):
    """The coordinate along which best effort grows."""

    LLC = "grow-llc"
    CORES = "grow-cores"


@dataclass(frozen=True, slots=True)
class HeraclesMemory:
    """``before``: (traffic in bytes/s, best effort's MIPS) before the way on trial; None if none is."""

    enabled: bool = False
    may_grow: bool = False
    cores: int = 1
    ways: int = 1
    growth: Growth = Growth.LLC
    before: tuple[float, float] | None = None
    cool_until_s: float = -math.inf
    top_due_s: float = -math.inf
    core_due_s: float = -math.inf


class HeraclesPolicy:
    """The policy of the module.

    Args:
        literal: keep the printed order of tests and a single service.
        peak_load_per_s: greatest load that each LRA can carry alone.
        peak_bytes_per_s: peak traffic of the host's memory channels.
    """

    def __init__(
        self,
        *,
        literal: bool = False,
        peak_load_per_s: Mapping[str, float] | None = None,
        peak_bytes_per_s: float = math.inf,
    ) -> None:
        self._literal = literal
        self._peaks = dict(peak_load_per_s or {})
        self._limit = DRAM_LIMIT * peak_bytes_per_s

    @property
    def name(self) -> str:
        """``heracles-literal`` or ``heracles``."""
        return "heracles-literal" if self._literal else "heracles"

    def decide(self, snapshot: Snapshot) -> TargetState:
        """Run the loops that are due."""
        known = snapshot.memory
        # The service starts alone: earlier samples with best effort do not count.
        memory = (
            known
            if isinstance(known, HeraclesMemory)
            else HeraclesMemory(top_due_s=snapshot.at_s + CORE_PERIOD_S)
        )
        everybody = [v for v in lras(snapshot) if v.sample is not None]
        service = everybody[:1] if self._literal else everybody
        effort = [*everybody[len(service) :], *batches(snapshot)]
        if not service:
            return TargetState({}, memory=memory)
        slacks = [s for v in service if (s := slack(v)) is not None]
        least = min(slacks) if slacks else None
        now_s = snapshot.at_s
        if least is not None and now_s >= memory.top_due_s:
            memory = replace(self._top(snapshot, memory, service, least), top_due_s=now_s + TOP_PERIOD_S)
        if memory.enabled and effort and now_s >= memory.core_due_s:
            memory = replace(
                self._grow(snapshot, memory, service, effort, least), core_due_s=now_s + CORE_PERIOD_S
            )
        return TargetState(_settings(snapshot, memory, service, effort), memory=memory)

    # -- the loops ---------------------------------------------------------------------------------

    def _top(
        self, snapshot: Snapshot, memory: HeraclesMemory, service: list[WorkloadView], least: float
    ) -> HeraclesMemory:
        now_s, load = snapshot.at_s, self._load(service)
        if least < 0.0:
            return replace(_disabled(memory), cool_until_s=now_s + COOL_DOWN_S)
        if load > LOAD_OFF:
            return _disabled(memory)
        cut = min(memory.cores, 2)
        if self._literal:
            if load < LOAD_ON:
                return _enabled(snapshot, memory)
            if least < GROW_SLACK:
                return replace(memory, may_grow=False, cores=cut if least < CUT_SLACK else memory.cores)
            return memory
        if load < LOAD_ON:
            memory = _enabled(snapshot, memory)
        memory = replace(memory, may_grow=memory.enabled and least >= GROW_SLACK)
        return replace(memory, cores=cut) if least < CUT_SLACK else memory

    def _grow(
        self,
        snapshot: Snapshot,
        memory: HeraclesMemory,
        service: list[WorkloadView],
        effort: list[WorkloadView],
        least: float | None,
    ) -> HeraclesMemory:
        theirs, mine = _traffic(effort), _traffic(service)
        each = theirs / max(1, memory.cores)
        total, most = theirs + mine, capacity(snapshot)
        memory, before = replace(memory, before=None), memory.before
        if total > self._limit:
            if before is not None:
                memory = replace(memory, ways=max(1, memory.ways - 1))
            surplus = math.ceil((total - self._limit) / max(each, 1.0))
            return replace(memory, cores=max(1, memory.cores - surplus), growth=Growth.CORES)
        if before is not None:
            # Evaluate the way granted two seconds ago: it must have lowered the traffic and helped best effort.
            if total >= before[0]:
                return replace(memory, ways=max(1, memory.ways - 1), growth=Growth.CORES)
            if _mips(effort) < (1.0 + BENEFIT) * before[1]:
                return replace(memory, growth=Growth.CORES)
        if not memory.may_grow:
            return memory
        if memory.growth is Growth.LLC:
            if total > self._limit or memory.ways + 1 >= most.ways:
                return replace(memory, growth=Growth.CORES)
            return replace(memory, ways=memory.ways + 1, before=(total, _mips(effort)))
        if mine + theirs + each > self._limit:
            return replace(memory, growth=Growth.LLC)
        if least is not None and least > GROW_SLACK and memory.cores + 1 < most.cores:
            return replace(memory, cores=memory.cores + 1)
        return memory

    def _load(self, service: list[WorkloadView]) -> float:
        loads = [0.0]
        for view in service:
            peak, sample = self._peaks.get(view.spec.name), view.sample
            if peak and sample is not None and available(sample.load_per_s):
                loads.append(sample.load_per_s / peak)
        return max(loads)


def _enabled(snapshot: Snapshot, memory: HeraclesMemory) -> HeraclesMemory:
    """Enable it unless it is cooling down; it restarts with one core and a tenth of the cache."""
    if snapshot.at_s < memory.cool_until_s:
        return memory
    if memory.enabled:
        return replace(memory, may_grow=True)
    ways = max(1, round(START_WAYS_SHARE * snapshot.host.llc_ways))
    return replace(memory, enabled=True, may_grow=True, cores=1, ways=ways, growth=Growth.LLC, before=None)


def _disabled(memory: HeraclesMemory) -> HeraclesMemory:
    return replace(memory, enabled=False, may_grow=False, cores=1, before=None)


def _traffic(views: list[WorkloadView]) -> float:
    return sum(value_or(v.sample.mbw_bytes_per_s, 0.0) for v in views if v.sample is not None)


def _mips(views: list[WorkloadView]) -> float:
    return sum(value_or(v.sample.mips, 0.0) for v in views if v.sample is not None)


def _settings(
    snapshot: Snapshot, memory: HeraclesMemory, service: list[WorkloadView], effort: list[WorkloadView]
) -> dict[str, Settings]:
    if not effort:
        return {}
    most = capacity(snapshot)
    if most.cores < 2:
        return {}
    theirs = Units(min(memory.cores, most.cores - 1), min(memory.ways, max(0, most.ways - 1)), 0)
    ours = Units(most.cores - theirs.cores, most.ways - theirs.ways, 0)
    names = [v.spec.name for v in service], [v.spec.name for v in effort]
    result = settings_of(snapshot.host, [(names[0], ours), (names[1], theirs)])
    if not memory.enabled:
        frozen = {v.spec.name for v in batches(snapshot)}
        result.update({name: replace(s, frozen=True) for name, s in result.items() if name in frozen})
    return result
