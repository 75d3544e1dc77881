"""Cores for several LRAs in one tick: their value to each LRA, the cores to spare, and the division. Pure.

``partition`` values a number of cores; ``placement`` selects the cores. Batch gets whatever the LRAs do not need, at
least its floor. If its floor exceeds the rest, batch may run in the idle class on LRAs' cores instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.admission.arbiter import partition
from perphd.admission.arbiter.member import Look, Member
from perphd.admission.arbiter.partition import Claim
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import BOLD, FAIR, LIKELY, SURE
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


@dataclass(frozen=True, slots=True)
class SharedCores:
    """The cores to divide, and the claims on them.

    ``total``: usable cores, with ``threads`` hardware threads each. ``floor``: cores guaranteed to batch. ``lras``:
    number of LRAs that get cores. ``has_batch``: batch is present. ``can_lend``: batch can run in the idle class on
    LRAs' cores.
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
        """Cores available to the LRAs together."""
        return self.total if self.can_lend else self.total - self.floor

    @property
    def most(self) -> int:
        """Maximum number of cores of one LRA that leaves one core for each of the others."""
        return max(1, self.for_lras - self.lras + 1)

    def chance(self, member: Member, cores: int) -> float:
        """Probability that this LRA meets its target with a number of cores."""
        if member.demand is None:
            return partition.NEVER if cores < member.cores else partition.KNOWN
        return partition.chance(member.seen, cores, member.demand, self.threads, self.now_s, member.anchor)

    def is_idle(self, member: Member, cores: int) -> bool:
        """True if, judging by demand alone, this number of cores is probably enough."""
        if member.demand is None:
            return False
        return partition.chance((), cores, member.demand, self.threads, self.now_s) >= LIKELY

    def needed(self, member: Member) -> int:
        """Fewest cores that are probably enough by demand alone, ignoring experience.

        Its present cores if its demand is unknown.
        """
        if member.demand is None:
            return max(1, member.cores)
        return next((n for n in range(1, self.most) if self.is_idle(member, n)), self.most)

    def fewest(self, member: Member, wanted: float, least: int = 1) -> int:
        """Fewest cores with at least this chance of meeting the target; the maximum if no number has it."""
        for cores in range(max(1, least), self.most):
            if self.chance(member, cores) >= wanted:
                return cores
        return self.most

    def spared(
        self, member: Member, settings: PolicySettings, *, needed: bool, batch_cores: int
    ) -> tuple[int, str]:
        """The cores that an LRA should have: fewer if that is almost certain or worth a trial, else its present number.

        Returns the number and a reason, which is empty if there is nothing to explain.

        Args:
            member: the LRA, on target.
            settings: the settings for it.
            needed: True if an LRA that is short, and can get no cores from batch, waits for spare cores.
            batch_cores: batch's present number of cores.
        """
        if member.trial is not None or member.calm_since_s is None:
            return member.cores, ""
        if member.cores == 1 or len(member.scores) < 2:
            return member.cores, ""
        calm_s = self.now_s - member.calm_since_s
        sure = self.fewest(member, SURE)
        if sure < member.cores:
            if calm_s < settings.shrink_sure_after_s:
                return member.cores, "more than enough; waiting before giving back cores"
            return sure, f"{sure} cores are almost certain to be enough"
        guess = self.chance(member, member.cores - 1)
        if guess < (BOLD if needed else worth_a_trial(batch_cores)):
            return member.cores, "just enough: with one core less the LRA would probably miss its target"
        waits_s = settings.shrink_sure_after_s, settings.shrink_after_s, 2.0 * settings.shrink_after_s
        if calm_s < waits_s[(guess < FAIR) + (not needed)]:
            return member.cores, "perhaps more than enough; waiting before giving back a core"
        return member.cores - 1, f"one core less is enough with a chance of {guess:.0%}"

    def expected(self, member: Member, cores: int) -> float:
        """The score with ``cores`` cores: measured for the present number, else expected."""
        if cores == member.cores and member.scores:
            return member.level
        if member.demand is None:
            return 1.0 if cores >= member.cores else 0.5
        score = partition.expected(member.seen, cores, member.demand, self.threads, self.now_s, member.anchor)
        if member.scores and cores < member.cores:
            score = min(score, member.level)
        elif score < 1.0 and self.chance(member, cores) >= LIKELY:
            score = 1.0
        return score


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
        scores = [cores.expected(member, n) for n in range(1, most + 1)]
        if not available(look.score) or member.demand is None:
            # If performance is unknown, the LRA keeps its cores.
            scores = [1.0 if n >= min(wanted[name], most) else 0.5 for n in range(1, most + 1)]
        for n in range(1, most):
            scores[n] = max(scores[n], scores[n - 1])
        found.append(Claim(name, look.view.spec.priority, member.cores, tuple(scores)))
    return found
