"""ORACLE in the world in which the others run: its setting for every situation, put in force and held.

The optimum is found on the noise-free model at rounded loads; the world's loads and needs wander by some per cent. What
this policy misses, with the truth known in advance, nobody who stands as close to the target could avoid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.policy import Snapshot, TargetState
from tools.bench.policies.measure import situation_at
from tools.bench.policies.oracle import Optimum, Packed
from tools.bench.policies.scene import Scenario

NAME: Final = "oracle-held"
PERIOD_S: Final = 1.0


class HeldPolicy:
    """``optima``: by situation, as the bench found them."""

    def __init__(self, scenario: Scenario, optima: Mapping[str, Optimum]) -> None:
        self._scenario, self._optima = scenario, optima

    @property
    def name(self) -> str:
        """``oracle-held``."""
        return NAME

    def decide(self, snapshot: Snapshot) -> TargetState:
        """What is best for who is there in the next second; nothing at all where that is not known."""
        there = {view.spec.name for view in snapshot.workloads if view.sample is not None}
        middle_s = snapshot.at_s + PERIOD_S / 2
        done = frozenset(
            a.name
            for a in self._scenario.actors
            if a.job is not None and a.starts_s < snapshot.at_s - PERIOD_S and a.name not in there
        )
        here = situation_at(self._scenario, middle_s, done)
        optimum = self._optima.get(here.key)
        if optimum is None or not optimum.row:
            return TargetState({})
        domains = range(self._scenario.machine.sockets)
        pairs = zip(here.works, optimum.row, strict=True)
        return TargetState({work.name: _settings(row, domains) for work, row in pairs})


def _settings(row: Packed, domains: range) -> Settings:
    cpus, weight, mask, level = row
    return Settings(
        cpus=CpuSet.parse(cpus),
        cpu_weight=weight or IDLE,
        llc_masks=tuple((d, mask) for d in domains),
        mba_pct=tuple((d, level) for d in domains),
    )
