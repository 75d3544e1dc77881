"""Cores for several LRAs in one tick: their value to each LRA, the cores to spare, and the division. Pure.

``partition_model`` and ``partition`` value a number of cores; ``placement`` selects the cores. Batch gets whatever the
LRAs do not need, at least its floor. If its floor exceeds the rest, batch may run in the idle class on LRAs' cores
instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np

from perphd.admission.arbiter import partition
from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition import Claim, Floats, ScoreBands
from perphd.admission.arbiter.partition_model import CoreModels, likeness, with_prior
from perphd.admission.thresholds import BOLD, FAIR, LIKELY, SURE
from perphd.domain.decision import Prediction
from perphd.domain.reading import available

MODEST: Final = 0.3
"""Minimum chance of success at which an LRA loses one core to batch, if batch has few cores."""
ODDS_PER_CORE: Final = 0.085
"""Minimum odds, for each core that batch has, that taking one core from an LRA for batch succeeds.

The less one more core adds for batch, the safer the trial must be.
"""


def worth_a_trial(batch_cores: int) -> float:
    """Minimum chance of success that justifies taking one core from an LRA for batch with this number of cores."""
    odds = ODDS_PER_CORE * batch_cores
    return max(MODEST, odds / (1.0 + odds))


@dataclass(slots=True)
class _Valued:
    """Expected scores of an LRA with 1, 2, ... own cores in this tick, and its chances of meeting its target.

    ``scores``: see ``SharedCores.scores_of``. None: not needed yet.
    """

    member: Member
    bands: ScoreBands | None = None
    chances: list[float] | None = None
    scores: list[float] | None = None


@dataclass(frozen=True, slots=True)
class SharedCores:
    """The cores to divide, and the claims on them.

    ``total``: usable cores, with ``threads`` hardware threads each. ``floor``: cores guaranteed to batch. ``lras``:
    number of LRAs that get cores. ``has_batch``: batch is present. ``can_lend``: batch can run in the idle class on
    LRAs' cores. ``models``: the LRAs' models; None: queue estimates alone.
    """

    total: int
    threads: int
    floor: int
    lras: int
    has_batch: bool
    can_lend: bool
    now_s: float
    models: CoreModels | None = None
    _valued: dict[str, _Valued] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def for_lras(self) -> int:
        """Cores available to the LRAs together."""
        return self.total if self.can_lend else self.total - self.floor

    @property
    def most(self) -> int:
        """Maximum number of cores of one LRA that leaves one core for each of the others."""
        return max(1, self.for_lras - self.lras + 1)

    def chance_of(self, look: Look, member: Member, cores: int) -> float:
        """Probability that this LRA meets its target with a number of own cores; never less with more cores.

        From experience with such a division, else from ``bands_of``.
        """
        if member.demand is None:
            return partition.NEVER if cores < member.cores else partition.KNOWN
        return self._chances(look, member)[cores - 1]

    def _chances(self, look: Look, member: Member) -> list[float]:
        valued = self._values(look, member)
        if valued.chances is None:
            found = self._chances_from(member, lambda: self.bands_of(look, member))
            valued.chances = list(accumulate(found, max))
        return valued.chances

    def _chances_from(self, member: Member, bands: Callable[[], ScoreBands]) -> list[float]:
        return partition.chances(member.seen, member.demand or 0.0, self.now_s, self.total, bands)

    def chance_by_queue(self, member: Member, cores: int) -> float:
        """The same without the model: what its own load on its own cores explains, and not what its neighbours do."""
        if member.demand is None:
            return partition.KNOWN
        return self._chances_from(member, lambda: self._prior(member, self._busy(member)))[cores - 1]

    def bands_of(self, look: Look, member: Member) -> ScoreBands:
        """The scores expected with 1, 2, ... own cores: the model's prediction, with the queue estimate as prior."""
        valued = self._values(look, member)
        if valued.bands is None:
            valued.bands = self._bands(look, member)
        return valued.bands

    def _bands(self, look: Look, member: Member) -> ScoreBands:
        busy = self._busy(member)
        prior = self._prior(member, busy)
        if self.models is None or (member.cores and not member.busy):
            return prior  # no sample of its own cores says anything yet
        told = self.models.curve(look, member.cores)
        # Until it has own cores, only the model's support tells how much it knows of them.
        alike = likeness(busy, member.busy) if member.cores else 1.0
        return with_prior(told, prior, alike) if told is not None else prior

    def _busy(self, member: Member) -> Floats:
        return partition.busy_shares(member.demand or 0.0, self.total, self.threads)

    def _prior(self, member: Member, busy: Floats) -> ScoreBands:
        return partition.queue_estimates(member.seen, busy, self.threads, self.now_s, member.anchor)

    def _values(self, look: Look, member: Member) -> _Valued:
        known = self._valued.get(look.name)
        if known is None or known.member is not member:
            known = self._valued[look.name] = _Valued(member)
        return known

    def is_idle(self, member: Member, cores: int) -> bool:
        """True if its demand would not keep this number of cores busy."""
        return member.demand is not None and partition.is_idle(cores, member.demand, self.threads)

    def needed(self, member: Member) -> int:
        """Fewest cores that are probably enough by demand alone, ignoring experience.

        Its present cores if its demand is unknown.
        """
        if member.demand is None:
            return max(1, member.cores)
        # The more cores, the less busy they are.
        return bisect_left(range(1, self.most), True, key=lambda cores: self.is_idle(member, cores)) + 1

    def fewest(self, look: Look, member: Member, wanted: float, least: int = 1) -> int:
        """Fewest cores with at least this chance of meeting the target; the maximum if no number has it."""
        lowest = min(max(1, least), self.most)
        if member.demand is None:
            kept = max(lowest, member.cores) if wanted > partition.NEVER else lowest
            return min(kept, self.most)
        return min(bisect_left(self._chances(look, member), wanted, lowest - 1) + 1, self.most)

    def spared(self, look: Look, member: Member, *, needed: bool, batch_cores: int) -> tuple[int, str]:
        """The cores that an LRA should have: fewer if that is almost certain or worth a trial, else its present number.

        Returns the number and a reason, which is empty if there is nothing to explain.

        Args:
            look: the LRA now, on target.
            member: its state.
            needed: True if an LRA that is short, and can get no cores from batch, waits for spare cores.
            batch_cores: batch's present number of cores.
        """
        if member.trial is not None or member.calm_since_s is None:
            return member.cores, ""
        if member.cores == 1 or len(member.scores) < 2:
            return member.cores, ""
        settings, calm_s = look.settings, self.now_s - member.calm_since_s
        sure = self.fewest(look, member, SURE)
        if sure < member.cores:
            if calm_s < settings.shrink_sure_after_s:
                return member.cores, "more than enough; waiting before giving back cores"
            return sure, f"{sure} cores are almost certain to be enough"
        guess = self.chance_of(look, member, member.cores - 1)
        if guess < (BOLD if needed else worth_a_trial(batch_cores)):
            return member.cores, "just enough: with one core less the LRA would probably miss its target"
        waits_s = settings.shrink_sure_after_s, settings.shrink_after_s, 2.0 * settings.shrink_after_s
        if calm_s < waits_s[(guess < FAIR) + (not needed)]:
            return member.cores, "perhaps more than enough; waiting before giving back a core"
        return member.cores - 1, f"one core less is enough with a chance of {guess:.0%}"

    def score_of(self, look: Look, member: Member, cores: int) -> float:
        """The score with ``cores`` cores: measured for the present number, else expected."""
        return self.scores_of(look, member)[cores - 1]

    def scores_of(self, look: Look, member: Member) -> list[float]:
        """``score_of`` 1, 2, ... cores."""
        valued = self._values(look, member)
        if valued.scores is None:
            valued.scores = self._scores(look, member)
        return valued.scores

    def _scores(self, look: Look, member: Member) -> list[float]:
        level = member.level if member.scores else None
        if member.demand is None:
            scores = [1.0 if cores >= member.cores else 0.5 for cores in range(1, self.total + 1)]
        else:
            bands = self.bands_of(look, member)
            found = partition.expected(member.seen, member.demand, self.now_s, bands)
            if member.anchor is None:
                guessed = np.minimum(found, partition.MOST_SCORE)
                found = np.where(bands.support > 0.0, found, guessed)
            scores = found.tolist()
            for place, (score, chance) in enumerate(zip(scores, self._chances(look, member), strict=True)):
                if level is not None and place + 1 < member.cores:
                    scores[place] = min(score, level)
                elif score < 1.0 and chance >= LIKELY:
                    scores[place] = 1.0
        if level is not None and 0 < member.cores <= self.total:
            scores[member.cores - 1] = level
        return scores

    def predictions(self, look: Look, counts: Sequence[int]) -> tuple[Prediction | None, ...]:
        """The model's own prediction for these numbers of own cores; None while it has none."""
        found = self.models.predictions(look, counts) if self.models is not None else ()
        return found or (None,) * len(counts)


@dataclass(frozen=True, slots=True)
class CoreShares:
    """The division of cores. ``lends``: batch may have to run in the idle class on LRAs' cores.

    ``lacks``: if the LRAs want more than there is, a message for each LRA that stays below target; else None.
    """

    counts: dict[str, int]
    lends: bool
    lacks: dict[str, str] | None = None


def divide(
    cores: SharedCores, wanted: Mapping[str, int], members: Mapping[str, Member], looks: Mapping[str, Look]
) -> CoreShares:
    """Divide the available cores among the LRAs.

    Args:
        cores: available cores.
        wanted: cores wanted for each LRA, by name.
        members: the state of each LRA.
        looks: view, target and judgement of each LRA, by name.
    """
    room, lends = cores.total - cores.floor, False
    if cores.can_lend and sum(wanted.values()) > room:
        # The LRAs gain more from batch's own cores than batch's idle-class work costs them.
        room, lends = cores.total, True
    has = {name: member.cores for name, member in members.items()}
    if sum(wanted.values()) <= room:
        counts = dict(wanted)
        if not cores.has_batch and counts != has:
            claims = _claims(cores, wanted, members, looks)
            counts = partition.spread(room - sum(counts.values()), counts, claims)
        return CoreShares(counts, lends)
    # The LRAs want more cores than there are, so divide by expected scores.
    claims = _claims(cores, wanted, members, looks)
    counts = partition.share_out(room, claims)
    for name in sorted(counts, key=lambda n: (-looks[n].view.spec.priority, n)):
        # An LRA keeps cores that bring no other LRA to its target. It gets none beyond those that it has.
        spare = room - sum(counts.values())
        counts[name] += max(0, min(spare, min(wanted[name], has[name]) - counts[name]))
    if not cores.has_batch:
        counts = partition.spread(room - sum(counts.values()), counts, claims)
    taken = [n for n in has if counts[n] < has[n]]
    if all(has.values()) and taken and len({claim.priority for claim in claims}) == 1:
        old, new = partition.worst(has, claims), partition.worst(counts, claims)
        if new < old * partition.LEAST_GAIN and sum(has.values()) <= room:
            counts = has
    lacks = {c.name: _lack(c, counts[c.name]) for c in claims if c.score(counts[c.name]) < 1.0}
    return CoreShares(counts, lends, lacks)


def _lack(claim: Claim, cores: int) -> str:
    if claim.scores[-1] < 1.0:
        return "unsatisfiable: no number of cores available here is expected to be enough"
    needs = claim.needs(1.0)
    return f"unsatisfiable: it needs {needs} cores, but {needs - cores} of them are missing"


def _claims(
    cores: SharedCores, wanted: Mapping[str, int], members: Mapping[str, Member], looks: Mapping[str, Look]
) -> list[Claim]:
    """Expected scores of each LRA with 1, 2, ... cores."""
    most, found = cores.most, []
    for name, look in looks.items():
        member = members[name]
        scores = cores.scores_of(look, member)[:most]
        if not available(look.score) or member.demand is None:
            # If performance is unknown, the LRA keeps its cores.
            scores = [1.0 if n >= min(wanted[name], most) else 0.5 for n in range(1, most + 1)]
        rising = tuple(accumulate(scores, max))
        found.append(Claim(name, look.view.spec.priority, member.cores, rising))
    return found
