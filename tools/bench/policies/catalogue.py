"""The policies of the bench by name: their construction for a scenario, and their decision period."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from perphd.admission.baselines import NonePolicy, StaticPolicy
from perphd.admission.perph import PerphPolicy
from perphd.domain.policy import Policy
from perphd.domain.workload import Touch
from perphd.predictor import Registry
from tools.bench.policies import ablation, held, measure, oracle
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
    """``period_s``: time between its decisions, its own as published. ``models``: it queries the Res-Perf models that
    ``registry`` creates. ``attentive``: it decides more often during changes. ``told``: it decides at once when batch
    starts. ``touch``: settings that it may change and try for an LRA.
    """

    make: Callable[[Scenario, int], Policy]
    period_s: float = 1.0
    models: bool = False
    attentive: bool = False
    told: bool = False
    touch: Touch = Touch.ALL
    registry: Callable[[], Registry] = Registry

    def run(self, scenario: Scenario, policy: Policy, seed: int, watch: Watch | None = None) -> Run:
        """Run ``policy``, created by this entrant, in a scenario at this entrant's pace."""
        return run(
            self._with_touch(scenario),
            policy,
            self.period_s,
            seed,
            models=self.models,
            attentive=self.attentive,
            told=self.told,
            registry=self.registry,
            watch=watch,
        )

    def _with_touch(self, scenario: Scenario) -> Scenario:
        if self.touch is Touch.ALL:
            return scenario
        return replace(scenario, actors=tuple(replace(a, touch=self.touch) for a in scenario.actors))


CLITE_SAMPLES: Final = 20
"""The published average number of samples (always below 30)."""


def _heracles(scene: Scenario, *, literal: bool) -> Policy:
    """Receives the facts of an offline profile: peak loads and the memory channels' peak."""
    peaks = {a.name: a.peak_load_per_s for a in scene.lras if a.peak_load_per_s is not None}
    peak = scene.machine.memory_bytes_per_s * scene.machine.sockets
    return HeraclesPolicy(literal=literal, peak_load_per_s=peaks, peak_bytes_per_s=peak)


def _held(scene: Scenario, *, late: bool) -> Policy:
    """Searches for the optima itself; the bench, which already has them, passes them in."""
    optima = {
        key: oracle.best(here, parts=scene.partition) for key, here in measure.situations(scene).items()
    }
    return held.HeldPolicy(scene, optima, late=late)


PERPH: Final = Entrant(lambda scene, seed: PerphPolicy(), models=True, attentive=True, told=True)
ENTRANTS: Final[dict[str, Entrant]] = {
    held.NAME: Entrant(lambda scene, seed: _held(scene, late=False), period_s=held.PERIOD_S),
    held.LATE: Entrant(lambda scene, seed: _held(scene, late=True), period_s=held.PERIOD_S),
    held.CLAIRVOYANT: Entrant(lambda scene, seed: _held(scene, late=False), period_s=held.PERIOD_S),
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
    "perph": PERPH,
}
"""All policies as published, or as shipped."""
VARIANTS: Final[dict[str, Entrant]] = {
    "perph-batch": replace(PERPH, touch=Touch.BATCH),
    "perph-staged": replace(PERPH, registry=lambda: Registry("staged")),
    "perph-level": replace(PERPH, registry=lambda: Registry("level")),
    "perph-no-trees": replace(PERPH, registry=ablation.without_trees),
    "perph-prior": replace(PERPH, registry=ablation.prior_only),
    "clite-50": replace(
        ENTRANTS["clite"], make=lambda scene, seed: clite.ClitePolicy(seed, 50, forgets=True)
    ),
}
"""perph with the shipped setting, and with parts of its model removed; CLITE with a longer search. Only on request."""
_PACE: Final = re.compile(r"(?P<base>[a-z0-9-]+?)(?:@(?P<period>[0-9.]+))?(?P<told>[+](?:told|untold))?")


def entrant(name: str) -> Entrant:
    """The entrant of this name; the suffix ``@0.25`` sets its pace in seconds, ``+told`` or ``+untold`` its
    notification.

    With ``+told`` it is called as soon as batch starts. Raises KeyError for an unknown name.
    """
    parts = _PACE.fullmatch(name)
    if parts is None:
        raise KeyError(name)
    found = (ENTRANTS | VARIANTS)[parts["base"]]
    if parts["period"]:
        found = replace(found, period_s=float(parts["period"]), attentive=False)
    return replace(found, told=parts["told"] == "+told") if parts["told"] else found


def place(name: str) -> tuple[int, str]:
    """Sort key of a name in tables: the catalogue's order, then paces."""
    order = [*ENTRANTS, *VARIANTS]
    base = re.split("[@+]", name)[0]
    return order.index(base) if base in order else len(order), name
