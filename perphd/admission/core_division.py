"""Division of the host's cores in one tick: which LRA can spare some, and how all are divided. Pure.

What a number of cores is worth says ``core_curve``; which cores they are, ``placement``. Batch has what the LRAs do not
need, its floor at least. Where that is promised more than is left, it can be an idle guest on their cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.admission import max_min
from perphd.admission.core_curve import SHORT, CoreCurve
from perphd.admission.lra_observation import LraObservation
from perphd.admission.lra_state import LraState
from perphd.admission.max_min import Claim
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import BOLD, FAIR, HELPED_RATIO, LIKELY, SURE
from perphd.domain.reading import available

MODEST: Final = 0.3
"""Chance from which a core less is worth a trial for batch's sake alone, where batch has few cores."""
ODDS_PER_CORE: Final = 0.085
"""The same where it has many: the odds, for each core that batch has. The less a core adds, the surer it must be."""


def worth_a_trial(batch_cores: int) -> float:
    """Chance from which a core less for an LRA is tried for batch's sake, where batch has so many."""
    odds = ODDS_PER_CORE * batch_cores
    return max(MODEST, odds / (1.0 + odds))


@dataclass(frozen=True, slots=True)
class SharedCores:
    """The cores that are to be divided, and what is asked of them.

    ``total``: all that are usable, of ``threads`` hardware threads each; ``floor``: those that batch is promised;
    ``lras``: how many LRAs are to have some; ``has_batch``: there is batch that can give and use cores; ``can_lend``:
    it can be an idle guest on the LRAs' cores.
    """

    total: int
    threads: int
    floor: int
    lras: int
    has_batch: bool
    can_lend: bool
    now_s: float

    @property
    def for_lras(self) -> int:
        """Cores that the LRAs can have together, if they need them."""
        return self.total if self.can_lend else self.total - self.floor

    @property
    def most(self) -> int:
        """Cores that one LRA can have at most: the others have one each."""
        return max(1, self.for_lras - self.lras + 1)

    def is_idle(self, lra: LraState, cores: int) -> bool:
        """True if so few cores would not be busy with what it wants."""
        return lra.own.demand is not None and max_min.is_idle(lra.own.demand, cores, self.threads)

    def spared(
        self, lra: LraState, curve: CoreCurve, settings: PolicySettings, *, needed: bool, batch_cores: int
    ) -> tuple[int, str]:
        """Fewer cores where that is as good as certain, or worth a trial, else those it has; and why, if that is news.

        Args:
            lra: the LRA, on target.
            curve: what more or fewer cores would give it.
            settings: those for it.
            needed: somebody is short who can take nothing from batch, and waits for what a neighbour can spare.
            batch_cores: what batch has now.
        """
        if lra.pending is not None or lra.own.calm_since_s is None:
            return lra.own.cores, ""
        if lra.own.cores == 1 or len(lra.scores) < 2:
            return lra.own.cores, ""
        calm_s = self.now_s - lra.own.calm_since_s
        sure = curve.fewest(SURE)
        if sure < lra.own.cores:
            if calm_s < settings.shrink_sure_after_s:
                return lra.own.cores, "more than enough; waiting before cores are given back"
            return sure, f"{sure} cores are as good as certain to be enough"
        guess = curve.chance(lra.own.cores - 1)
        if guess < (BOLD if needed else worth_a_trial(batch_cores)):
            return lra.own.cores, "just enough: with a core less it would likely miss its target"
        waits_s = settings.shrink_sure_after_s, settings.shrink_after_s, 2.0 * settings.shrink_after_s
        if calm_s < waits_s[(guess < FAIR) + (not needed)]:
            return lra.own.cores, "perhaps more than enough; waiting before a core is given back"
        return lra.own.cores - 1, f"a {guess:.0%} chance that a core less is enough"


@dataclass(frozen=True, slots=True)
class Shares:
    """Who gets how many cores. ``lends``: batch may have to be a guest on them.

    ``lacks``: where more is wanted than there is, what each that stays below its target lacks, in words; else None.
    """

    counts: dict[str, int]
    lends: bool
    lacks: dict[str, str] | None = None


def divide(
    cores: SharedCores,
    wanted: Mapping[str, int],
    states: Mapping[str, LraState],
    observations: Mapping[str, LraObservation],
    curves: Mapping[str, CoreCurve],
) -> Shares:
    """What everybody gets of what everybody wants.

    Args:
        cores: what there is.
        wanted: cores for each LRA, by name.
        states: what is remembered of each.
        observations: how each is now.
        curves: what any number of cores would give each.
    """
    room, lends = cores.total - cores.floor, False
    if cores.can_lend and sum(wanted.values()) > room:
        # What batch would have for itself is worth more to them than its idle-class work on it costs.
        room, lends = cores.total, True
    has = {name: lra.own.cores for name, lra in states.items()}
    if sum(wanted.values()) <= room:
        counts = dict(wanted)
        if not cores.has_batch and counts != has:
            claims = _claims(cores, wanted, states, observations, curves)
            counts = max_min.spread(room - sum(counts.values()), counts, claims)
        return Shares(counts, lends)
    # More is wanted than there is: by what each is expected to do with how many.
    claims = _claims(cores, wanted, states, observations, curves)
    counts = max_min.max_min_shares(room, claims)
    for name in sorted(counts, key=lambda n: (-observations[n].view.spec.priority, n)):
        # What is not needed to bring anybody on target stays where it is, and is not taken away from batch.
        spare = room - sum(counts.values())
        counts[name] += max(0, min(spare, min(wanted[name], has[name]) - counts[name]))
    if not cores.has_batch:
        counts = max_min.spread(room - sum(counts.values()), counts, claims)
    taken = [n for n in has if counts[n] < has[n]]
    if all(has.values()) and taken and len({claim.priority for claim in claims}) == 1:
        old, new = max_min.worst(has, claims), max_min.worst(counts, claims)
        if new < old * max_min.LEAST_GAIN and sum(has.values()) <= room:
            counts = has
    lacks = {c.name: _lack(c, counts[c.name]) for c in claims if c.score(counts[c.name]) < 1.0}
    return Shares(counts, lends, lacks)


def _lack(claim: Claim, cores: int) -> str:
    if claim.scores[-1] < 1.0:
        return "unsatisfiable: no number of cores that it can have here is expected to be enough"
    needs = claim.needs(1.0)
    return f"unsatisfiable: it needs {needs} cores and {needs - cores} of them are missing"


def _claims(
    cores: SharedCores,
    wanted: Mapping[str, int],
    states: Mapping[str, LraState],
    observations: Mapping[str, LraObservation],
    curves: Mapping[str, CoreCurve],
) -> list[Claim]:
    """What is expected of each with 1, 2, ... cores; who is to have a number of them gets no less by asking."""
    most, found = cores.most, []
    for name, observed in observations.items():
        lra, curve = states[name], curves[name]
        scores = [_expected(curve, n, lra.own.cores) for n in range(1, most + 1)]
        if not available(observed.score) or lra.own.demand is None:
            # Nobody can say how it does: it keeps what it has.
            scores = [1.0 if n >= min(wanted[name], most) else 0.5 for n in range(1, most + 1)]
        found_most = max(wanted[name], lra.own.cores, 1)
        scores = [
            *scores[:found_most],
            *(0.0 for _ in scores[found_most:]),
        ]  # nobody gets more than it asks for
        for n in range(1, most):
            # Below its target a gain that would not show is none: it is not worth another's core.
            helps = scores[n] >= scores[n - 1] * HELPED_RATIO or scores[n] >= 1.0
            scores[n] = max(scores[n], scores[n - 1]) if helps else scores[n - 1]
        found.append(Claim(name, observed.view.spec.priority, lra.own.cores, tuple(scores)))
    return found


def _expected(curve: CoreCurve, cores: int, has: int) -> float:
    """The score to reckon with: more cores that are likely to be enough count as enough."""
    score = curve.score(cores)
    if cores <= curve.barred:
        return min(score, SHORT)
    return 1.0 if score < 1.0 and cores > has and curve.chance(cores) >= LIKELY else score
