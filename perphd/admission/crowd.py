"""Several LRAs on one host: each on cores of its own, batch on the rest in what cache and bandwidth are left to it.

Protecting all of them from batch does not protect them from each other, so each gets cores that nobody else may use.
How many is guessed from how busy it keeps them and learned from what came of it (``partition``); who is short gets
enough for its target at once, from batch first, then from whoever can spare it; what is more than enough goes back to
batch, a core at a time where that is a guess. Cache and bandwidth are taken from batch as one, by the ladder.

One tick is one pass over values: ``Crowd`` goes in and comes out, nothing else is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from perphd.admission import ladder, partition
from perphd.admission.cause import surroundings
from perphd.admission.context import batch_demand_cores, batch_is_quiet, batches, lras, total_cores
from perphd.admission.detector import DetectorState, judge, target_of
from perphd.admission.member import (
    HELPED,
    STEPS,
    Came,
    Look,
    Member,
    Trial,
    demand_of,
    hierarchy_is_to_blame,
    is_short,
    judge_trial,
    take_in,
)
from perphd.admission.partition import Claim, Seen
from perphd.admission.placement import Cores, place
from perphd.admission.scene import Scene
from perphd.admission.settings import PolicySettings, settings_for
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Candidate, Cause, Decision, Health, Outcome, Prediction, Verdict
from perphd.domain.policy import Snapshot, WorkloadView
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Quality
from perphd.domain.signals import performance

BEGIN_CHANCE: Final = 0.9
"""Chance to be enough with which everybody begins: what of it is not needed is given back."""
CROWDED: Final = 0.9
"""Busy share of the host from which nobody's use is quite its own."""
BEGIN_MBW_PCT: Final = 60
SURE_CHANCE: Final = 0.9
"""Chance from which a smaller part counts as certain, and need not wait nor go step by step."""
WANTS_MORE: Final = 0.9
"""Share of its cores that batch must want, or none are given back to it."""
ROOM: Final = 1.10
"""Everybody must be this far above target before cache or bandwidth is given back."""
MUCH_ROOM: Final = 1.18
"""And so far for more than a step of it at once."""
PLAIN, PLAINLY = 2, 0.9
"""So many scores below that are trouble, whether or not something is seen to wait."""
SLIGHT: Final = 0.96
"""From this score on cache and bandwidth are taken from batch by single units."""
ELSEWHERE: Final = 0.94
"""Demand that is measured on too few cores is less by this factor on enough of them."""
FAR_SHORT: Final = 0.8
"""Below this score, cores are added beside what is done about the cache: relief first."""
GUESS_SD: Final = 0.25
"""Spread (log units) of a guessed score, for the records."""


@dataclass(frozen=True, slots=True)
class Ban:
    """A protection of cache and bandwidth that was too little: not again until then; twice as long each time."""

    ways: int
    pct: int
    until_s: float
    times: int


@dataclass(frozen=True, slots=True)
class Tightened:
    """Cache or bandwidth was taken from batch for an LRA; ``ways``, ``pct`` and its ``score`` before that."""

    name: str
    ways: int
    pct: int
    score: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is remembered of all of them together.

    ``members``, ``placed``: by name; ``ways``, ``pct``: what batch may not use of the cache, its bandwidth throttle;
    ``looser``: (ways, pct) before the last change of these, while that is on trial; ``trouble_was_quiet``: batch was
    not even there when they got into each other's way.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    placed: Mapping[str, Cores] = field(default_factory=dict)
    batch_cores: int = 0
    ways: int = 0
    pct: int = 100
    on_trial: tuple[int, int] | None = None
    tightened: Tightened | None = None
    tried_s: float = 0.0
    bans: tuple[Ban, ...] = ()
    moved_s: float = -math.inf
    quiet_since_s: float | None = None
    trouble_was_quiet: bool = False


@dataclass(slots=True)
class _Move:
    """What is done to one LRA this tick, being worked out."""

    action: Action = Action.HOLD
    reason: str = "on target"
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What a tick came to. ``crowd``: None when everybody shares again."""

    crowd: Crowd | None
    decisions: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]
    protections: Mapping[str, Allocation]


def present(snapshot: Snapshot) -> tuple[WorkloadView, ...]:
    """The LRAs that are there."""
    return tuple(
        v
        for v in lras(snapshot)
        if v.sample is not None and v.model is not None and not v.sample.has(Quality.GONE)
    )


def can_part(snapshot: Snapshot) -> bool:
    """True if every LRA can get cores of its own here: several, all enforced, and a core for each and for batch."""
    here = present(snapshot)
    everybody = batches(snapshot)
    giving = [v for v in everybody if v.enforced]
    if len(here) < 2 or (everybody and not giving):
        return False
    if not all(v.enforced and "cpus" in v.enforceable for v in here):
        return False
    if not all("cpus" in v.enforceable for v in giving if v.sample is not None):
        return False
    return total_cores(snapshot) >= len(here) + _floor(snapshot, here[0], PolicySettings())


def _floor(snapshot: Snapshot, view: WorkloadView, settings: PolicySettings) -> int:
    if not any(v.sample is not None for v in batches(snapshot)):
        return 0
    return Scene(settings, snapshot, view).floor_cores()


class CrowdTick:
    """One tick of all LRAs together. Holds the working values of a single decision; never outlives it."""

    def __init__(
        self,
        settings: PolicySettings,
        snapshot: Snapshot,
        before: Crowd | None,
        detectors: Mapping[str, DetectorState],
    ) -> None:
        self.settings, self.snapshot, self.now_s = settings, snapshot, snapshot.at_s
        self.new = before is None
        self.crowd = before if before is not None else Crowd(trouble_was_quiet=self._is_quiet(False))
        self.total = total_cores(snapshot)
        usable = snapshot.host.topology.usable
        self.threads = max(1, round(len(usable) / self.total))
        views = present(snapshot)
        self.floor = _floor(snapshot, views[0], settings) if views else 0
        self.looks = {v.spec.name: self._look(v, detectors) for v in views}
        self.members: dict[str, Member] = {}
        self.moves: dict[str, _Move] = {name: _Move() for name in self.looks}
        self.outcomes: list[Outcome] = []
        self.cache = self.crowd.ways, self.crowd.pct

    def run(self) -> Result:
        """Learn from the samples, decide, and say what is to be in force."""
        quiet_since_s = self._quiet_since()
        self.crowd = replace(self.crowd, quiet_since_s=quiet_since_s)
        if self._is_over():
            return self._released()
        for name, look in self.looks.items():
            self.members[name] = self._seen(name, look)
        self._judge_tightened()
        self._judge_cache()
        wanted = {name: self._wanted(name) for name in self.looks}
        counts = self._divide(wanted)
        self._loosen(counts)
        return self._finish(counts)

    # -- looking ------------------------------------------------------------------------------------

    def _look(self, view: WorkloadView, detectors: Mapping[str, DetectorState]) -> Look:
        assert view.sample is not None
        assert view.model is not None
        perf = performance(view.sample, view.spec.objective.latency_percentile)
        settings = settings_for(self.settings, view.spec)
        target = target_of(view.spec.objective, view.model, perf, settings)
        known = self.crowd.members.get(view.spec.name)
        state = known.detector if known is not None else detectors.get(view.spec.name, DetectorState())
        judged = judge(
            state,
            view.sample,
            perf,
            target,
            view.model,
            settings,
            protected=known is not None,
            around=surroundings(self.snapshot),
            period_s=self.snapshot.period_s,
        )
        return Look(view, target, judged, Scene(self.settings, self.snapshot, view).is_clean())

    def _seen(self, name: str, look: Look) -> Member:
        """The member with what this sample tells, its trial judged."""
        member = self.crowd.members.get(name)
        if member is None:
            demand = demand_of(look, self._host_busy(), self.threads)
            member = Member(0, look.judged.state, demand=demand if available(demand) else None)
            self.moves[name].reason = "it is new here"
            return member
        sample = look.view.sample
        usage = sample.cpu_usage_cores if sample is not None else math.nan
        busy = usage / (member.cores * self.threads) if available(usage) else 0.0
        demand = demand_of(look, busy, self.threads)
        member = take_in(member, look, demand, self.threads, self.now_s)
        if member.trial is not None:
            member = self._judged(name, member, member.trial, look)
        if (
            len(member.scores) >= 3
            and member.level >= 1.0
            and member.scores[-1] >= 1.0
            and member.demand is not None
        ):
            good = Seen(member.cores, member.demand, member.level, self.now_s + partition.GOOD_LASTS_S)
            member = replace(member, seen=self._noted(member, good), rescues=0, idle_times=0)
        return member

    def _judged(self, name: str, member: Member, trial: Trial, look: Look) -> Member:
        came = judge_trial(member, look, self.settings)
        if came is Came.OPEN:
            return member
        after = member.level if member.scores else look.score
        shrunk = trial.after < trial.before
        kept = not (shrunk and came is Came.TOO_FEW)
        text = f"{trial.before} -> {trial.after} cores of its own: {came}"
        before = trial.score if not math.isnan(trial.score) else Unavailable("not known")
        self.outcomes.append(Outcome(self.now_s, name, trial.at_s, before, after, kept=kept, text=text))
        if shrunk and came is Came.TOO_FEW:
            member = self._too_few(member)
        member = replace(member, trial=None)
        if shrunk and came is Came.TOO_FEW:
            self.moves[name] = _Move(Action.ROLLBACK, f"{text}: taken back")
        elif came is Came.NO_HELP:
            wait_s = self.settings.regret_s * 2.0 ** min(member.idle_times, 6)
            member = replace(
                member,
                idle_cores_until_s=self.now_s + wait_s,
                idle_times=member.idle_times + 1,
                rescues=0,
            )
            if self._is_idle(member, trial.before):
                # They were not busy, and more of them did not help: it is not for want of cores.
                self.moves[name] = _Move(Action.ROLLBACK, f"{text}: given back, it waits for something else")
        return member

    def _too_few(self, member: Member) -> Member:
        demand = member.demand if member.demand is not None else 0.0
        if member.trial is not None:
            # On too few cores everything takes longer: what it wants is what it wanted before.
            demand = min(demand, member.trial.demand)
        else:
            demand *= ELSEWHERE
        bad = Seen(member.cores, demand, member.level if member.scores else 0.0, self.now_s, times=1)
        return replace(member, seen=self._noted(member, bad))

    def _noted(self, member: Member, new: Seen) -> tuple[Seen, ...]:
        return partition.note(member.seen, new, self.now_s, self.settings.regret_s)

    # -- what everybody needs -----------------------------------------------------------------------

    def _chance(self, member: Member, cores: int) -> float:
        if member.demand is None:
            return partition.NEVER if cores < member.cores else partition.SURE
        return partition.chance(member.seen, cores, member.demand, self.threads, self.now_s, member.anchor)

    def _is_idle(self, member: Member, cores: int) -> bool:
        """True if so few cores would not be busy with what it wants."""
        if member.demand is None:
            return False
        return partition.chance((), cores, member.demand, self.threads, self.now_s) >= partition.LIKELY

    def _fewest(self, member: Member, wanted: float, least: int = 1) -> int:
        """The fewest cores with that chance; all that there can be if none have it."""
        most = self.total - self.floor - len(self.looks) + 1
        for cores in range(max(1, least), most):
            if self._chance(member, cores) >= wanted:
                return cores
        return max(most, 1)

    def _wanted(self, name: str) -> int:
        """Cores that this LRA is to have if there are enough; says why in its move."""
        member, look, move = self.members[name], self.looks[name], self.moves[name]
        if member.cores == 0:
            if member.demand is None:
                return max(1, self.total // (len(self.looks) + 1))
            # Beside everybody else its use is not quite its own: a guess is made again when it is apart.
            return self._fewest(member, BEGIN_CHANCE if self._host_busy() < CROWDED else partition.LIKELY)
        if move.action is Action.ROLLBACK:
            before = self.crowd.members[name].trial
            undo = before is not None and member.trial is None
            return before.before if undo and before is not None else member.cores
        if isinstance(look.score, Unavailable):
            move.reason = look.score.reason
            return member.cores
        if not look.clean:
            move.reason = "the last change is settling"
            return member.cores
        if is_short(member, look):
            return self._rescued(name, member, look, move)
        if look.score < 1.0:
            move.reason = "below target, but no further than its samples scatter: watching"
        return self._spared(name, member, move)

    def _rescued(self, name: str, member: Member, look: Look, move: _Move) -> int:
        trial = member.trial
        if trial is not None and trial.after > trial.before and self._is_idle(member, trial.before):
            # Its cores are not busy: first it is seen whether more of them helped at all.
            move.reason = f"score {member.level:.2f}: whether more cores help is being judged"
            return member.cores
        guess = self._chance(member, member.cores)
        member = self._too_few(member) if not hierarchy_is_to_blame(look) else member
        tighter = self._tighter(look)
        doubt = member.idle_cores_until_s > self.now_s
        # Busy cores are believed to be too few, whatever else is slow.
        blame = guess >= partition.FAIR and (
            hierarchy_is_to_blame(look) or guess >= partition.LIKELY or doubt
        )
        why = f"score {member.level:.2f}"
        if tighter is not None and blame:
            self._tighten(name, tighter)
            move.reason = f"{why}: its cores should be enough, so batch gets less cache and bandwidth"
            if doubt or hierarchy_is_to_blame(look) or member.level >= FAR_SHORT:
                self.members[name] = replace(member, scores=(), calm_since_s=None)
                return member.cores
        if doubt and self._is_idle(member, member.cores):
            move.reason = f"{why}: more cores did not help; what it waits for is not found here"
            return member.cores
        step = STEPS[min(member.rescues, len(STEPS) - 1)]
        self.members[name] = replace(member, rescues=member.rescues + 1)
        move.action, move.reason = Action.GROW, f"{why}: too few cores"
        return self._fewest(member, partition.LIKELY, member.cores + step)

    def _spared(self, name: str, member: Member, move: _Move) -> int:
        """Fewer cores where that is as good as certain, or worth a trial; else those it has."""
        if self._batch_is_full() or member.trial is not None or member.calm_since_s is None:
            return member.cores
        calm_s = self.now_s - member.calm_since_s
        if member.cores == 1 or len(member.scores) < 2:
            return member.cores
        sure = self._fewest(member, SURE_CHANCE)
        if sure < member.cores:
            if calm_s < self.settings.shrink_sure_after_s:
                move.reason = "more than enough; waiting before cores are given back"
                return member.cores
            move.action = Action.SHRINK
            move.reason = f"{sure} cores are as good as certain to be enough"
            return sure
        guess = self._chance(member, member.cores - 1)
        if guess < partition.SLIM:
            move.reason = "just enough: with a core less it would likely miss its target"
            return member.cores
        if calm_s < self.settings.shrink_after_s * (1.0 if guess >= partition.FAIR else 2.0):
            move.reason = "perhaps more than enough; waiting before a core is given back"
            return member.cores
        move.action = Action.SHRINK
        move.reason = f"a {guess:.0%} chance that a core less is enough"
        return member.cores - 1

    # -- who gets what ------------------------------------------------------------------------------

    def _divide(self, wanted: Mapping[str, int]) -> dict[str, int]:
        room = self.total - self.floor
        has = {name: member.cores for name, member in self.members.items()}
        if sum(wanted.values()) <= room:
            counts = dict(wanted)
            if not self._has_batch() and counts != has:
                claims = self._claims(wanted)
                counts = partition.spread(room - sum(counts.values()), counts, claims)
            return counts
        # More is wanted than there is: by what each is expected to do with how many.
        claims = self._claims(wanted)
        counts = partition.share_out(room, claims)
        for name in sorted(counts, key=lambda n: (-self.looks[n].view.spec.priority, n)):
            # What is not needed to bring anybody on target stays where it is, and is not taken away from batch.
            spare = room - sum(counts.values())
            counts[name] += max(0, min(spare, min(wanted[name], has[name]) - counts[name]))
        if not self._has_batch():
            counts = partition.spread(room - sum(counts.values()), counts, claims)
        taken = [n for n in has if counts[n] < has[n]]
        if all(has.values()) and taken and self._same_priority():
            old, new = partition.worst(has, claims), partition.worst(counts, claims)
            if new < old * partition.LEAST_GAIN and sum(has.values()) <= room:
                counts = has
        unmet = {c.name: c.needs(1.0) - counts[c.name] for c in claims if c.score(counts[c.name]) < 1.0}
        self._explain_shortage(counts, unmet)
        return counts

    def _claims(self, wanted: Mapping[str, int]) -> list[Claim]:
        """What is expected of each with 1, 2, ... cores; who is to have a number of them gets no less by asking."""
        most = max(1, self.total - self.floor - len(self.looks) + 1)
        found = []
        for name, look in self.looks.items():
            member = self.members[name]
            scores = [self._expected(member, cores) for cores in range(1, most + 1)]
            if not available(look.score) or member.demand is None:
                # Nobody can say how it does: it keeps what it has.
                scores = [1.0 if n >= min(wanted[name], most) else 0.5 for n in range(1, most + 1)]
            for n in range(1, most):
                scores[n] = max(scores[n], scores[n - 1])
            found.append(Claim(name, look.view.spec.priority, member.cores, tuple(scores)))
        return found

    def _expected(self, member: Member, cores: int) -> float:
        """The score that this many cores would bring: what is measured on the present ones, else what is expected."""
        if cores == member.cores and member.scores:
            return member.level
        if member.demand is None:
            return 1.0 if cores >= member.cores else 0.5
        score = partition.expected(member.seen, cores, member.demand, self.threads, self.now_s, member.anchor)
        if member.scores and cores < member.cores:
            score = min(score, member.level)
        elif score < 1.0 and self._chance(member, cores) >= partition.LIKELY:
            score = 1.0
        return score

    def _same_priority(self) -> bool:
        return len({look.view.spec.priority for look in self.looks.values()}) == 1

    def _explain_shortage(self, counts: Mapping[str, int], unmet: Mapping[str, int]) -> None:
        takers = [n for n in counts if counts[n] > self.members[n].cores]
        for name, count in counts.items():
            move, member = self.moves[name], self.members[name]
            if name in unmet:
                tighter = self._tighter(self.looks[name])
                if member.cores and is_short(member, self.looks[name]) and count == member.cores and tighter:
                    self._tighten(name, tighter)
                    self.members[name] = replace(member, scores=(), calm_since_s=None)
                    move.reason += "; batch gets less cache and bandwidth instead"
                lacks = f"unsatisfiable: it needs {count + unmet[name]} cores and {unmet[name]} of them are missing"
                move.reason = f"{move.reason}; {lacks}"
            if count < member.cores and move.action is not Action.SHRINK:
                move.action = Action.SHRINK
                kept = self._chance(member, count)
                move.reason = (
                    f"gives {member.cores - count} cores to {', '.join(takers)}, which is short; "
                    f"a {kept:.0%} chance that it keeps its target"
                )
            elif count <= member.cores and move.action is Action.GROW:
                same = self.cache == (self.crowd.ways, self.crowd.pct)
                move.action = Action.HOLD if same else Action.GROW

    # -- cache and bandwidth ------------------------------------------------------------------------

    def _giving(self) -> tuple[WorkloadView, ...]:
        return tuple(v for v in batches(self.snapshot) if v.enforced and v.sample is not None)

    def _tighter(self, look: Look) -> tuple[int, int] | None:
        cause = look.judged.hierarchy if look.judged.hierarchy in (Cause.LLC, Cause.MBW) else Cause.LLC
        here = Allocation(CpuGrant(self.total, self.total), 0, *self.cache)
        member = self.members[look.name]
        if self.crowd.tightened is not None or member.idle_cache_until_s > self.now_s:
            return None
        if member.level >= SLIGHT:
            return self._notch(cause)
        for rung in ladder.stronger(here, cause, self.snapshot.host, self._giving()):
            return rung.llc_ways, rung.mbw_pct
        return None

    def _notch(self, cause: Cause) -> tuple[int, int] | None:
        """One unit of cache or bandwidth less for batch, for who is slightly short."""
        host, (ways, pct) = self.snapshot.host, self.cache
        lower = [level for level in host.mba_levels_pct if level < pct]
        steps: list[tuple[int, int]] = []
        if ladder.can_protect_llc(host, self._giving()) and host.llc_ways - ways > host.min_cbm_bits:
            steps.append((ways + 1, pct))
        if ladder.can_protect_mbw(host, self._giving()) and lower:
            steps.append((ways, max(lower)))
        if cause is Cause.MBW:
            steps.reverse()
        return steps[0] if steps else None

    def _tighten(self, name: str, to: tuple[int, int]) -> None:
        ways, pct = self.cache
        if self.crowd.tightened is None:
            self.crowd = replace(self.crowd, tightened=Tightened(name, ways, pct, self.members[name].level))
        self.cache = max(ways, to[0]), min(pct, to[1])
        self.moves[name].action = Action.GROW

    def _judge_tightened(self) -> None:
        """Cache or bandwidth that was taken from batch and did not help goes back at once."""
        trial = self.crowd.tightened
        if trial is None:
            return
        member, look = self.members.get(trial.name), self.looks.get(trial.name)
        if member is None or look is None:
            self.crowd = replace(self.crowd, tightened=None)
            return
        if not look.clean or len(member.scores) < max(self.settings.evaluate_ticks, 3):
            return
        self.crowd = replace(self.crowd, tightened=None)
        if member.level >= 1.0 or math.isnan(trial.score) or member.level >= trial.score * HELPED:
            self._ban(trial.ways, trial.pct)
            return
        self.cache = trial.ways, trial.pct
        until_s = self.now_s + self.settings.regret_s
        self.members[trial.name] = replace(member, idle_cache_until_s=until_s)
        self.moves[trial.name] = _Move(
            Action.ROLLBACK, "less cache and bandwidth for batch did not help it: undone"
        )

    def _first_cache(self) -> tuple[int, int]:
        """Half of the cache, and what throttles hardly anybody: to begin with."""
        host, giving = self.snapshot.host, self._giving()
        ways = host.llc_ways // 2 if ladder.can_protect_llc(host, giving) else 0
        levels = [level for level in host.mba_levels_pct if level >= BEGIN_MBW_PCT]
        pct = min(levels, default=100) if ladder.can_protect_mbw(host, giving) else 100
        return ways, pct

    def _ban(self, ways: int, pct: int) -> None:
        """So little protection was not enough: not again for a while, which doubles."""
        alike = [b for b in self.crowd.bans if (b.ways, b.pct) == (ways, pct)]
        times = 1 + max((b.times for b in alike), default=0)
        until_s = self.now_s + self.settings.regret_s * 2.0 ** min(times - 1, 6)
        others = tuple(b for b in self.crowd.bans if b not in alike)[-8:]
        self.crowd = replace(self.crowd, bans=(*others, Ban(ways, pct, until_s, times)))

    def _judge_cache(self) -> None:
        """Cache or bandwidth that was given back and was missed is taken again."""
        looser = self.crowd.on_trial
        if looser is None:
            return
        short = [n for n, m in self.members.items() if m.cores and is_short(m, self.looks[n])]
        far = [n for n, look in self.looks.items() if available(look.score) and look.score < 0.7]
        if short or far:
            self._ban(*self.cache)
            self.crowd = replace(self.crowd, on_trial=None)
            self.cache = looser
            for name in short:
                self.moves[name] = _Move(
                    Action.ROLLBACK, "it misses the cache or bandwidth that batch was given back"
                )
                # What was seen was not for want of cores.
                self.members[name] = replace(self.members[name], scores=(), calm_since_s=None, trial=None)
        elif self.now_s - self.crowd.tried_s >= self.settings.shrink_after_s:
            self.crowd = replace(self.crowd, on_trial=None)

    def _loosen(self, counts: Mapping[str, int]) -> None:
        """A step of cache or bandwidth back to batch, when nothing else moves and everybody is well."""
        crowd, members = self.crowd, self.members
        if (
            self.new
            or self.cache != (crowd.ways, crowd.pct)
            or crowd.on_trial is not None
            or not self._has_batch()
        ):
            return
        if any(counts[n] != m.cores or m.trial is not None for n, m in members.items()):
            return
        calm = [m.calm_since_s if m.level >= ROOM else None for m in members.values()]
        if any(c is None or self.now_s - c < self.settings.shrink_after_s for c in calm):
            return
        here = Allocation(CpuGrant(self.total, self.total), 0, *self.cache)
        steps = [(step.llc_ways, step.mbw_pct) for step in ladder.weaker(here, self.snapshot.host)]
        if min(m.level for m in members.values()) >= MUCH_ROOM:
            steps = (
                [(here.llc_ways, 100)] * (here.mbw_pct < 100) + [(here.llc_ways // 2, here.mbw_pct)] + steps
            )
        for found in steps:
            if found == self.cache:
                continue
            if any(b.until_s > self.now_s and found[0] <= b.ways and found[1] >= b.pct for b in crowd.bans):
                continue
            self.crowd = replace(crowd, on_trial=self.cache, tried_s=self.now_s)
            self.cache = found
            first = next(iter(self.looks))
            self.moves[first] = _Move(
                Action.SHRINK, "everybody is well: batch gets back some cache or bandwidth"
            )
            return

    # -- the end ------------------------------------------------------------------------------------

    def _finish(self, counts: Mapping[str, int]) -> Result:
        topology = self.snapshot.host.topology
        if self.new:
            self.cache = self._first_cache()
        if not self._has_batch():
            self.cache = 0, 100
        placed = place(topology, counts, self.crowd.placed)
        left = self.total - sum(counts.values())
        changed = self.cache != (self.crowd.ways, self.crowd.pct) or left != self.crowd.batch_cores
        decisions: list[Decision] = []
        protections: dict[str, Allocation] = {}
        for name, count in counts.items():
            member, look, move = self.members[name], self.looks[name], self.moves[name]
            if count != member.cores:
                changed = True
                trial = None
                if member.cores and move.action is not Action.ROLLBACK:
                    trial = Trial(self.now_s, member.cores, count, member.level, member.demand or 0.0)
                move = self._named(move, member, count, left)
                member = replace(member, cores=count, scores=(), calm_since_s=None, trial=trial)
                self.members[name] = member
            grant = CpuGrant(self.total, left, exclusive=True, own_cores=count)
            memory = self._memory(look)
            chosen = Allocation(grant, memory, *self.cache)
            protections[name] = chosen
            decisions.append(self._record(look, member, move, chosen))
        crowd = replace(
            self.crowd,
            members=self.members,
            placed=placed,
            batch_cores=left,
            ways=self.cache[0],
            pct=self.cache[1],
            moved_s=self.now_s if changed else self.crowd.moved_s,
        )
        decisions += self._waiting()
        return Result(crowd, tuple(decisions), tuple(self.outcomes), protections)

    def _memory(self, look: Look) -> int:
        """Bytes to protect: the working set of who stalls for memory; what is protected stays so."""
        view, sample = look.view, look.view.sample
        has = view.protection.memory_bytes if view.protection is not None else 0
        if sample is None or "memory_low_bytes" not in view.enforceable:
            return has
        stalls, working_set = sample.memory_some_pct, sample.memory_working_set_bytes
        if not (available(stalls) and available(working_set) and available(look.score)):
            return has
        if stalls < self.settings.memory_pressure_pct or look.score >= 1.0:
            return has
        return max(has, int(working_set * (1.0 + self.settings.memory_margin_pct / 100.0)))

    def _named(self, move: _Move, member: Member, count: int, left: int) -> _Move:
        action = move.action
        if action is Action.HOLD:
            action = Action.GROW if count > member.cores else Action.SHRINK
        text = f"{member.cores or 'no'} -> {count} cores of its own, batch has {left}: {move.reason}"
        return _Move(action, text, self._candidates(member, count))

    def _candidates(self, member: Member, count: int) -> tuple[Candidate, ...]:
        found = []
        for cores in sorted({member.cores, count, max(1, count - 1), count + 1} - {0}):
            grant = CpuGrant(self.total, max(0, self.total - cores), exclusive=True, own_cores=cores)
            guess = self._chance(member, cores)
            score = math.exp(GUESS_SD * _quantile(guess))
            support = float(sum(1 for s in member.seen if s.cores == cores))
            spread = math.exp(GUESS_SD)
            verdict = "chosen" if cores == count else "in force" if cores == member.cores else "considered"
            prediction = Prediction(score, score / spread, score * spread, support)
            found.append(Candidate(Allocation(grant, 0, *self.cache), prediction, float(cores), verdict))
        return tuple(found)

    def _record(self, look: Look, member: Member, move: _Move, chosen: Allocation) -> Decision:
        current = look.view.protection
        if current is None:
            current = Allocation(CpuGrant(self.total, self.total))
        verdict = look.judged.verdict
        return Decision(
            self.now_s, look.name, verdict, move.action, look.target.work, look.target.delay,
            current, chosen, move.candidates, move.reason, "",
        )  # fmt: skip

    def _waiting(self) -> list[Decision]:
        nothing = Allocation(CpuGrant(self.total, self.total))
        unknown = Unavailable("not sampled")
        return [
            Decision(
                self.now_s, v.spec.name, Verdict(Health.UNKNOWN, Cause.NONE, self.now_s, ()), Action.RELEASE,
                unknown, unknown, v.protection or nothing, nothing, (),
                f"waiting for cgroup {v.spec.cgroup}: it does not exist", "",
            )
            for v in lras(self.snapshot)
            if v.spec.name not in self.looks
        ]  # fmt: skip

    def _released(self) -> Result:
        nothing = Allocation(CpuGrant(self.total, self.total))
        reason = "batch is idle or gone, and they did not disturb each other: everything is given back"
        decisions = [
            self._record(look, Member(0), _Move(Action.RELEASE, reason), nothing)
            for look in self.looks.values()
        ]
        return Result(None, (*decisions, *self._waiting()), (), dict.fromkeys(self.looks, nothing))

    def _quiet_since(self) -> float | None:
        if not self._is_quiet(True):
            return None
        known = self.crowd.quiet_since_s
        return known if known is not None else self.now_s

    def _is_quiet(self, protected: bool) -> bool:
        return batch_is_quiet(self.snapshot, self.settings.batch_idle_cores, protected)

    def _is_over(self) -> bool:
        since_s = self.crowd.quiet_since_s
        if self.new or self.crowd.trouble_was_quiet or since_s is None:
            return False
        return self.now_s - since_s >= self.settings.release_after_s

    def _has_batch(self) -> bool:
        return bool(self._giving())

    def _batch_is_full(self) -> bool:
        """True if batch has no use for more cores."""
        if not self._has_batch():
            return True
        return batch_demand_cores(self.snapshot) < WANTS_MORE * self.crowd.batch_cores

    def _host_busy(self) -> float:
        busy = self.snapshot.host.busy_cores
        return busy / max(1, len(self.snapshot.host.topology.usable)) if available(busy) else 1.0


def _quantile(probability: float) -> float:
    """Of the standard normal distribution; the logistic curve is near enough for a record."""
    p = min(max(probability, 1e-6), 1.0 - 1e-6)
    return math.log(p / (1.0 - p)) / 1.702


def in_trouble(decisions: Sequence[Decision], scores: Mapping[str, Sequence[float]]) -> bool:
    """True if some LRA is below its target: for a reason that was seen, or plainly while others run beside it.

    ``scores``: the clean scores of each since its last change, newest last.
    """
    if any(d.verdict.health is Health.DEGRADED for d in decisions):
        return True
    return any(len(s) >= PLAIN and max(s[-PLAIN:]) < PLAINLY for s in scores.values())
