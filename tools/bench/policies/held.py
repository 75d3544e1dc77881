"""ORACLE in the policies' world: its setting for every situation, applied and held.

The optimum is found on the noise-free model at rounded loads; the world's loads and needs wander by some per cent. No
policy as close to the target could avoid the misses of this one, which knows the truth in advance. ``oracle-late``
learns of a situation one round after it began, like every policy that decides by samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Snapshot, TargetState
from tools.bench.policies.measure import situation_at
from tools.bench.policies.oracle import Optimum, Packed, Situation
from tools.bench.policies.scene import Scenario

NAME: Final = "oracle-held"
LATE: Final = "oracle-late"
CLAIRVOYANT: Final = "clairvoyant"
"""ORACLE with the margin of ``MARGINS`` that misses least in this run, given its physics, future and random numbers."""
MARGINS: Final = (0.0, 0.08)
PERIOD_S: Final = 1.0


class HeldPolicy:
    """``optima``: by situation, as the bench found them. ``late``: applied one round too late.

    ``margin``: the optima are those of targets that are tighter by this margin.
    """

    def __init__(
        self, scenario: Scenario, optima: Mapping[str, Optimum], *, late: bool = False, margin: float = 0.0
    ) -> None:
        self._scenario = scenario.tightened(margin) if margin else scenario
        self._optima, self._late = optima, late

    @property
    def name(self) -> str:
        """``oracle-held`` or ``oracle-late``."""
        return LATE if self._late else NAME

    def decide(self, snapshot: Snapshot) -> TargetState:
        """The best settings for the workloads of the next second (late: of the last second).

        Changes nothing if the optimum is unknown.
        """
        there = {view.spec.name for view in snapshot.workloads if view.sample is not None}
        middle_s = snapshot.at_s + (-PERIOD_S if self._late else PERIOD_S) / 2
        done = frozenset(
            a.name
            for a in self._scenario.actors
            if a.job is not None and a.starts_s < snapshot.at_s - PERIOD_S and a.name not in there
        )
        here = situation_at(self._scenario, middle_s, done)
        optimum = self._optima.get(here.key)
        if optimum is None or not optimum.row:
            return TargetState({})
        return TargetState(settings_of(here, optimum))


def settings_of(here: Situation, optimum: Optimum) -> dict[str, Settings]:
    """The optimum's settings for every workload of its situation, in a policy's form."""
    domains = range(here.machine.sockets)
    return {
        work.name: _settings(row, domains)
        for place, (work, row) in enumerate(zip(here.works, optimum.row, strict=True))
        if place not in here.undeclared
    }


def _settings(row: Packed, domains: range) -> Settings:
    cpus, weight, mask, level = row
    return Settings(
        cpus=CpuSet.parse(cpus),
        cpu_weight=weight or IDLE,
        llc_masks=tuple((d, mask) for d in domains),
        mba_pct=tuple((d, level) for d in domains),
    )
