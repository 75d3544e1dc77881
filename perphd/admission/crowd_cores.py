"""Cores for several LRAs in one tick: what so many would do for each, who can spare some, how all are divided. Pure.

What a number of cores is worth is ``partition``'s to say; which ones they are, ``placement``'s. Here it is asked for
everybody at once, beside batch, which has what the LRAs do not need, its floor at least: where it is promised more than
is left, it can be an idle guest on their cores instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perphd.admission import partition
from perphd.admission.member import Look, Member
from perphd.admission.partition import Claim
from perphd.admission.settings import PolicySettings
from perphd.admission.thresholds import BOLD, FAIR, LIKELY, SURE
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

    def chance(self, member: Member, cores: int) -> float:
        """Probability that this LRA meets its target with so many cores."""
        if member.demand is None:
            return partition.NEVER if cores < member.cores else partition.KNOWN
        return partition.chance(member.seen, cores, member.demand, self.threads, self.now_s, member.anchor)

    def is_idle(self, member: Member, cores: int) -> bool:
        """True if so few cores would not be busy with what it wants."""
        if member.demand is None:
            return False
        return partition.chance((), cores, member.demand, self.threads, self.now_s) >= LIKELY

    def fewest(self, member: Member, wanted: float, least: int = 1) -> int:
        """The fewest cores with that chance; all that there can be if none have it."""
        for cores in range(max(1, least), self.most):
            if self.chance(member, cores) >= wanted:
                return cores
        return self.most

    def spared(
        self, member: Member, settings: PolicySettings, *, needed: bool, batch_cores: int
    ) -> tuple[int, str]:
        """Fewer cores where that is as good as certain, or worth a trial, else those it has; and why, if that is news.

        Args:
            member: the LRA, on target.
            settings: those for it.
            needed: somebody is short who can take nothing from batch, and waits for what a neighbour can spare.
            batch_cores: what batch has now.
        """
        if member.trial is not None or member.calm_since_s is None:
            return member.cores, ""
        if member.cores == 1 or len(member.scores) < 2:
            return member.cores, ""
        calm_s = self.now_s - member.calm_since_s
        sure = self.fewest(member, SURE)
        if sure < member.cores:
            if calm_s < settings.shrink_sure_after_s:
                return member.cores, "more than enough; waiting before cores are given back"
            return sure, f"{sure} cores are as good as certain to be enough"
        guess = self.chance(member, member.cores - 1)
        if guess < (BOLD if needed else worth_a_trial(batch_cores)):
            return member.cores, "just enough: with a core less it would likely miss its target"
        waits_s = settings.shrink_sure_after_s, settings.shrink_after_s, 2.0 * settings.shrink_after_s
        if calm_s < waits_s[(guess < FAIR) + (not needed)]:
            return member.cores, "perhaps more than enough; waiting before a core is given back"
        return member.cores - 1, f"a {guess:.0%} chance that a core less is enough"

    def expected(self, member: Member, cores: int) -> float:
        """The score that this many cores would bring: what is measured on the present ones, else what is expected."""
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
class Shares:
    """Who gets how many cores. ``lends``: batch may have to be a guest on them.

    ``lacks``: where more is wanted than there is, what each that stays below its target lacks, in words; else None.
    """

    counts: dict[str, int]
    lends: bool
    lacks: dict[str, str] | None = None


def divide(
    cores: SharedCores, wanted: Mapping[str, int], members: Mapping[str, Member], looks: Mapping[str, Look]
) -> Shares:
    """What everybody gets of what everybody wants.

    Args:
        cores: what there is.
        wanted: cores for each LRA, by name.
        members: what is remembered of each.
        looks: how each is now.
    """
    room, lends = cores.total - cores.floor, False
    if cores.can_lend and sum(wanted.values()) > room:
        # What batch would have for itself is worth more to them than its idle-class work on it costs.
        room, lends = cores.total, True
    has = {name: member.cores for name, member in members.items()}
    if sum(wanted.values()) <= room:
        counts = dict(wanted)
        if not cores.has_batch and counts != has:
            claims = _claims(cores, wanted, members, looks)
            counts = partition.spread(room - sum(counts.values()), counts, claims)
        return Shares(counts, lends)
    # More is wanted than there is: by what each is expected to do with how many.
    claims = _claims(cores, wanted, members, looks)
    counts = partition.share_out(room, claims)
    for name in sorted(counts, key=lambda n: (-looks[n].view.spec.priority, n)):
        # What is not needed to bring anybody on target stays where it is, and is not taken away from batch.
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
    return Shares(counts, lends, lacks)


def _lack(claim: Claim, cores: int) -> str:
    if claim.scores[-1] < 1.0:
        return "unsatisfiable: no number of cores that it can have here is expected to be enough"
    needs = claim.needs(1.0)
    return f"unsatisfiable: it needs {needs} cores and {needs - cores} of them are missing"


def _claims(
    cores: SharedCores, wanted: Mapping[str, int], members: Mapping[str, Member], looks: Mapping[str, Look]
) -> list[Claim]:
    """What is expected of each with 1, 2, ... cores; who is to have a number of them gets no less by asking."""
    most, found = cores.most, []
    for name, look in looks.items():
        member = members[name]
        scores = [cores.expected(member, n) for n in range(1, most + 1)]
        if not available(look.score) or member.demand is None:
            # Nobody can say how it does: it keeps what it has.
            scores = [1.0 if n >= min(wanted[name], most) else 0.5 for n in range(1, most + 1)]
        for n in range(1, most):
            scores[n] = max(scores[n], scores[n - 1])
        found.append(Claim(name, look.view.spec.priority, member.cores, tuple(scores)))
    return found
