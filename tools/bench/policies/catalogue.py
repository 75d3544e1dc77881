"""The policies of the bench by name: how each is made for a scenario, and how often it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from perphd.admission.baselines import NonePolicy, StaticPolicy
from perphd.admission.perph import PerphPolicy
from perphd.domain.policy import Policy
from tools.bench.policies import held, measure, oracle
from tools.bench.policies.driver import Run, Watch, run
from tools.bench.policies.peers import clite
from tools.bench.policies.peers.heracles import HeraclesPolicy
from tools.bench.policies.peers.koordinator import KoordinatorPolicy
from tools.bench.policies.peers.parties import PartiesPolicy
from tools.bench.policies.peers.perph_literal import PerphLiteralPolicy
from tools.bench.policies.peers.shares import CpuSharesPolicy
from tools.bench.policies.scene import Scenario


@dataclass(frozen=True, slots=True)
class Entrant:
    """``period_s``: time between its decisions, its own as published. ``models``: it asks the Res-Perf model.
    ``attentive``: it decides more often while something is in flux.
    """

    make: Callable[[Scenario, int], Policy]
    period_s: float = 1.0
    models: bool = False
    attentive: bool = False

    def run(self, scenario: Scenario, policy: Policy, seed: int, watch: Watch | None = None) -> Run:
        """Let ``policy``, one of this entrant's, rule a scenario at this entrant's pace."""
        return run(
            scenario,
            policy,
            self.period_s,
            seed,
            models=self.models,
            attentive=self.attentive,
            watch=watch,
        )


CLITE_SAMPLES: Final = 50
"""More than it ever takes as published (20 on average, always below 30), fewer than its own limit of 100."""


def _heracles(scene: Scenario, *, literal: bool) -> Policy:
    """Told what its off-line profile would tell: peak loads and the memory channels' peak."""
    peaks = {a.name: a.peak_load_per_s for a in scene.lras if a.peak_load_per_s is not None}
    peak = scene.machine.memory_bytes_per_s * scene.machine.sockets
    return HeraclesPolicy(literal=literal, peak_load_per_s=peaks, peak_bytes_per_s=peak)


def _held(scene: Scenario, *, late: bool) -> Policy:
    """Looks for the optima itself; the bench, which has them already, makes one with those."""
    optima = {
        key: oracle.best(here, parts=scene.partition) for key, here in measure.situations(scene).items()
    }
    return held.HeldPolicy(scene, optima, late=late)


ENTRANTS: Final[dict[str, Entrant]] = {
    held.NAME: Entrant(lambda scene, seed: _held(scene, late=False), period_s=held.PERIOD_S),
    held.LATE: Entrant(lambda scene, seed: _held(scene, late=True), period_s=held.PERIOD_S),
    "none": Entrant(lambda scene, seed: NonePolicy()),
    "cpu-sbs": Entrant(lambda scene, seed: CpuSharesPolicy()),
    "static": Entrant(lambda scene, seed: StaticPolicy()),
    "koordinator": Entrant(lambda scene, seed: KoordinatorPolicy()),
    "heracles-literal": Entrant(lambda scene, seed: _heracles(scene, literal=True)),
    "heracles": Entrant(lambda scene, seed: _heracles(scene, literal=False)),
    "parties": Entrant(lambda scene, seed: PartiesPolicy(seed), period_s=0.5),
    "parties-literal": Entrant(lambda scene, seed: PartiesPolicy(seed, literal=True), period_s=0.5),
    "clite": Entrant(lambda scene, seed: clite.ClitePolicy(seed, CLITE_SAMPLES), period_s=clite.PERIOD_S),
    "perph-literal": Entrant(lambda scene, seed: PerphLiteralPolicy(), models=True),
    "perph": Entrant(lambda scene, seed: PerphPolicy(), models=True, attentive=True),
}
