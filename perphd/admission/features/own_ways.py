"""Separate cache ways for LRAs that evict each other's data, as laid out by the solver.

Protection from batch leaves the whole cache to every LRA. That does not help if LRAs of one L3 domain disturb each
other. They are separated if all of this holds:

* two or more LRAs of the domain are short of cache at the same time, and batch cannot be restricted further;
* it is known how many ways are enough for each LRA: the fewest that it occupied in samples on target;
* the solver finds contiguous ways for each of them beside batch's. They share the remaining ways.

perphd does not narrow LRAs on target, and narrows no LRA below the ways known to be enough. If a condition
fails, the masks overlap as before, and decisions give the reason. If LRAs are short of cache with separate
ways, the masks overlap again, with a doubling pause before the next try. From time to time all LRAs get the
whole cache back, because programs change; LRAs that are then short are separated again.

One tick is one pass over values: ``OwnWays`` is the only state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from perphd.admission.context import batches, lras
from perphd.admission.inference.domains import domains_of
from perphd.admission.inference.way_layout import Apart, lay_apart
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.backoff import doubled_s
from perphd.domain.decision import AWAITED, Action, Cause, Decision, Health, Outcome
from perphd.domain.policy import Snapshot, TargetState, WorkloadView
from perphd.domain.quick import replace
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Touch
from rdt.layout import Infeasible

SAMPLES: Final = 30
"""Number of samples on target to remember; their lowest occupancy shows how many ways are enough."""
FEWEST: Final = 5
"""Minimum number of samples on target for a conclusion about how many ways are enough."""
SHORT_TICKS: Final = 3
"""Number of consecutive samples short of cache, without further restriction of batch, that show a need."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The LRAs of one domain that have separate ways, from ``since_s`` until ``until_s`` at the latest."""

    domain: int
    layout: Apart
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class WaysPause:
    """Time until which no LRAs of this domain are separated. ``times``: consecutive failures."""

    domain: int
    until_s: float
    times: int


@dataclass(frozen=True, slots=True)
class OwnWays:
    """The state of all separations.

    ``held``: ways occupied in the last samples on target, by (LRA, domain). ``short``: number of consecutive ticks
    short of cache, by LRA.
    """

    held: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    short: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    pauses: tuple[WaysPause, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one tick: the next state, and the settings and decisions with separate ways."""

    own: OwnWays
    settings: Mapping[str, Settings]
    decisions: tuple[Decision, ...]
    outcomes: tuple[Outcome, ...]


def advance(before: OwnWays, snapshot: Snapshot, target: TargetState, policy: PolicySettings) -> Step:
    """Process one tick, after all other decisions."""
    tick = _Tick(before, snapshot, target, policy)
    tick.run()
    return tick.step()


class _Tick:
    """Working values of one tick."""

    def __init__(
        self, before: OwnWays, snapshot: Snapshot, target: TargetState, policy: PolicySettings
    ) -> None:
        self.now, self.snapshot, self.target, self.policy = before, snapshot, target, policy
        self.host, self.at_s = snapshot.host, snapshot.at_s
        topology = snapshot.host.topology
        self.homes = {
            view.spec.name: domains_of(topology, view, target.settings[view.spec.name].cpus)
            for view in lras(snapshot)
            if _can(view) and view.spec.name in target.settings
        }
        self.decisions = {d.workload: d for d in target.decisions if d.workload in self.homes}
        self.reasons: dict[str, str] = {}
        self.actions: dict[str, Action] = {}
        self.outcomes: list[Outcome] = []

    def run(self) -> None:
        """Learn how many ways are enough, end expired separations, and separate LRAs that need it."""
        host = self.host
        if host.llc_ways <= host.min_cbm_bits or len(self.homes) < 2:
            self.now = replace(self.now, pairs=(), short={})
            return
        views = {view.spec.name: view for view in lras(self.snapshot)}
        self._learn(views)
        for pair in self.now.pairs:
            self._review(pair)
        for domain in (each.domain for each in host.topology.l3_domains):
            if not any(pair.domain == domain for pair in self.now.pairs):
                self._part(domain)

    # -- what is known --------------------------------------------------------------------------------

    def _learn(self, views: Mapping[str, WorkloadView]) -> None:
        held = {key: ways for key, ways in self.now.held.items() if key[0] in self.homes}
        short: dict[str, int] = {}
        for name, decision in self.decisions.items():
            sample, verdict = views[name].sample, decision.verdict
            unsettled = sample is None or sample.has(Quality.SETTLING, Quality.FIRST, Quality.RESTARTED)
            if sample is None or unsettled or _awaits(decision):
                short[name] = self.now.short.get(name, 0)
                continue
            if verdict.health in (Health.HEALTHY, Health.OVERPROVISIONED):
                for domain in self.homes[name]:
                    if (ways := self._ways_held(sample, domain)) is not None:
                        held[name, domain] = (*held.get((name, domain), ()), ways)[-SAMPLES:]
            pressed = verdict.health is Health.DEGRADED and verdict.cause is Cause.LLC
            if pressed and decision.action is Action.HOLD:
                short[name] = self.now.short.get(name, 0) + 1
        self.now = replace(self.now, held=held, short={n: ticks for n, ticks in short.items() if ticks})

    def _ways_held(self, sample: Sample, domain: int) -> int | None:
        """Ways of this domain that the LRA occupied, rounded up; None if not measured."""
        each = next((d for d in self.host.topology.l3_domains if d.domain == domain), None)
        use = next((u.llc_occupancy_bytes for u in sample.domains if u.domain == domain), None)
        if use is None and len(self.host.topology.l3_domains) == 1:
            use = sample.llc_occupancy_bytes
        if each is None or each.size_bytes <= 0 or use is None or not available(use):
            return None
        ways = math.ceil(use * self.host.llc_ways / each.size_bytes)
        return min(max(ways, self.host.min_cbm_bits, 1), self.host.llc_ways)

    def _enough(self, name: str, domain: int) -> int | None:
        known = self.now.held.get((name, domain), ())
        return min(known) if len(known) >= FEWEST else None

    # -- separating LRAs ------------------------------------------------------------------------------

    def _part(self, domain: int) -> None:
        here = [name for name, homes in self.homes.items() if domain in homes]
        short = [name for name in here if self.now.short.get(name, 0) >= SHORT_TICKS]
        if len(short) < 2 or any(p.domain == domain and p.until_s > self.at_s for p in self.now.pauses):
            return
        together = "shares the cache with {}"
        needs: dict[str, int] = {}
        for name in short:
            enough = self._enough(name, domain)
            if enough is None:
                why = f"it is unknown how much cache is enough for {name} (no occupancy measured while on target)"
                self._say(short, f"no separate ways: {why}", together)
                return
            needs[name] = enough
        try:
            layout = lay_apart(self.host, needs, self._batch_ways(domain), self._closids(), {})
        except Infeasible as exc:
            self._say(short, f"no separate ways: {exc}", together)
            return
        if any(len(set(pool) & set(short)) > 1 for pool in layout.pooled) and len(short) == 2:
            self._say(short, "no separate ways: too few CLOSIDs for one group per LRA", together)
            return
        times = next((p.times for p in self.now.pauses if p.domain == domain), 0)
        until_s = self.at_s + doubled_s(self.policy.streaming_recheck_s, times)
        pair = Pair(domain, layout, self.at_s, until_s)
        self.now = replace(
            self.now,
            pairs=(*self.now.pairs, pair),
            short={n: t for n, t in self.now.short.items() if n not in short},
        )
        for name in short:
            self.actions[name] = Action.GROW

    def _batch_ways(self, domain: int) -> int:
        """Batch's ways in this domain; the minimum if there is no batch."""
        masks = [
            settings.llc_masks
            for view in batches(self.snapshot)
            if (settings := self.target.settings.get(view.spec.name)) is not None and view.sample is not None
        ]
        named = [dict(each).get(domain) for each in masks if each is not KEEP]
        left = [mask.bit_count() for mask in named if mask is not None]
        return min(left, default=self.host.min_cbm_bits)

    def _closids(self) -> int:
        """CLOSIDs available: all except those of the default group, of further batch masks and of other domains."""
        count = self.host.llc_classes
        if count <= 0:
            return len(self.homes) + 1
        others = {self.target.settings[v.spec.name].llc_masks for v in batches(self.snapshot)} - {KEEP}
        taken = sum(len(pair.layout.masks) for pair in self.now.pairs)
        return max(1, count - 1 - max(0, len(others) - 1) - taken)

    # -- review ---------------------------------------------------------------------------------------

    def _review(self, pair: Pair) -> None:
        names = [name for name, _ in pair.layout.masks]
        gone = [name for name in names if pair.domain not in self.homes.get(name, ())]
        short = [name for name in names if self.now.short.get(name, 0) >= SHORT_TICKS]
        if gone:
            self._join(pair, f"no longer in this domain: {', '.join(gone)}", Action.ROLLBACK)
        elif short:
            self._join(pair, f"short of cache with separate ways: {', '.join(short)}", Action.ROLLBACK)
            known = next(
                (p for p in self.now.pauses if p.domain == pair.domain), WaysPause(pair.domain, 0.0, 0)
            )
            until_s = self.at_s + doubled_s(self.policy.regret_s, known.times)
            others = tuple(p for p in self.now.pauses if p.domain != pair.domain)
            self.now = replace(self.now, pauses=(*others, WaysPause(pair.domain, until_s, known.times + 1)))
        elif self.at_s >= pair.until_s:
            self._join(pair, "testing whether they still disturb each other", Action.SHRINK)

    def _join(self, pair: Pair, why: str, action: Action) -> None:
        none = Unavailable("not evaluated for this change; see the LRA's own decisions")
        for name, _ in pair.layout.masks:
            if name in self.homes:
                text = f"the whole cache of domain {pair.domain} again: {why}"
                self.reasons[name], self.actions[name] = text, action
                kept = action is not Action.ROLLBACK
                self.outcomes.append(Outcome(self.at_s, name, pair.since_s, none, none, kept, text))
        names = {name for name, _ in pair.layout.masks}
        self.now = replace(
            self.now,
            pairs=tuple(each for each in self.now.pairs if each is not pair),
            short={n: t for n, t in self.now.short.items() if n not in names},
        )

    def _say(self, names: Sequence[str], why: str, together: str) -> None:
        for name in names:
            others = ", ".join(each for each in names if each != name)
            self.reasons[name] = f"{why}; {together.format(others)}"

    # -- the end --------------------------------------------------------------------------------------

    def step(self) -> Step:
        """The settings with the masks of separated LRAs, and decisions that explain them."""
        settings = dict(self.target.settings)
        own: dict[str, int] = {}
        told: dict[str, list[str]] = {name: [text] for name, text in self.reasons.items()}
        for pair in self.now.pairs:
            for name, mask in pair.layout.masks:
                settings[name] = _with_mask(settings[name], pair.domain, mask)
                own[name] = max(own.get(name, 0), pair.layout.ways(name))
                others = [each for each, _ in pair.layout.masks if each != name]
                text = f"{pair.layout.ways(name)} separate ways in domain {pair.domain}, not shared with "
                text += ", ".join(others)
                pool = next((each for each in pair.layout.pooled if name in each), ())
                if len(pool) > 1:
                    shared = ", ".join(each for each in pool if each != name)
                    text += f" (shares a CLOSID with {shared})"
                told.setdefault(name, []).append(text)
            for view in batches(self.snapshot):
                name = view.spec.name
                if "llc_masks" in view.enforceable and view.enforced and name in settings:
                    settings[name] = _inside(settings[name], pair.domain, pair.layout.batch)
        decisions = tuple(self._told(d, own, told.get(d.workload, ())) for d in self.target.decisions)
        return Step(self.now, settings, decisions, tuple(self.outcomes))

    def _told(self, decision: Decision, own: Mapping[str, int], told: Sequence[str]) -> Decision:
        view = next((v for v in lras(self.snapshot) if v.spec.name == decision.workload), None)
        had = view.protection.own_ways if view is not None and view.protection is not None else 0
        ways = own.get(decision.workload, 0)
        if not (had or ways or told):
            return decision
        action = decision.action
        if action is Action.HOLD:
            action = self.actions.get(decision.workload, Action.HOLD)
        return replace(
            decision,
            action=action,
            current=replace(decision.current, own_ways=had),
            chosen=replace(decision.chosen, own_ways=ways),
            reason="; ".join((decision.reason, *told)),
        )


def _can(view: WorkloadView) -> bool:
    may = view.enforced and view.spec.touch is Touch.ALL
    return view.sample is not None and may and "llc_masks" in view.enforceable


def _awaits(decision: Decision) -> bool:
    """True if the sample could not be judged yet, so that the verdict is an earlier one."""
    return any(each.signal == AWAITED for each in decision.verdict.evidence)


def _with_mask(settings: Settings, domain: int, mask: int) -> Settings:
    masks = {} if settings.llc_masks is KEEP else dict(settings.llc_masks)
    masks[domain] = mask
    return replace(settings, llc_masks=tuple(sorted(masks.items())))


def _inside(settings: Settings, domain: int, mask: int) -> Settings:
    """Settings with batch's mask in a domain restricted to the ways of ``mask``; all of these ways if none is left."""
    masks = {} if settings.llc_masks is KEEP else dict(settings.llc_masks)
    masks[domain] = (masks.get(domain, mask) & mask) or mask
    return replace(settings, llc_masks=tuple(sorted(masks.items())))
