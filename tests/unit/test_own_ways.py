"""LRAs of one cache that turn each other's data out get ways of their own, and only they."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features import own_ways
from perphd.admission.features.own_ways import FEWEST, SHORT_TICKS, OwnWays, Step
from perphd.admission.inference import way_layout
from perphd.admission.inference.inferer import untouched
from perphd.admission.settings import PolicySettings
from perphd.control.tagged import decode_tagged, encode_tagged
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import AWAITED, Action, Cause, Decision, Evidence, Health, Verdict
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import DomainUse, Sample
from perphd.domain.topology import L3Domain
from perphd.domain.workload import Kind, WorkloadSpec
from rdt.layout import Infeasible
from tests.unit.admission_world import topology

WAYS = 11
MIB = 1 << 20
ALL = (1 << WAYS) - 1


def host(*, classes: int = 8, domains: int = 2, shareable: int = 0) -> HostView:
    caches = tuple(L3Domain(d, CpuSet.of((2 * d, 2 * d + 1)), WAYS * MIB) for d in range(domains))
    return HostView(
        replace(topology(2 * domains), l3_domains=caches),
        llc_ways=WAYS,
        llc_classes=classes,
        llc_shareable=shareable,
    )


@dataclass
class Lra:
    """``holds``: MiB of the cache of its domain, which has as many ways."""

    domain: int = 0
    holds: Reading = 3.0
    health: Health = Health.HEALTHY
    cause: Cause = Cause.NONE
    there: bool = True
    evidence: tuple[Evidence, ...] = ()


@dataclass
class Play:
    lras: dict[str, Lra]
    view: HostView = field(default_factory=host)
    batch_mask: int | None = 0x400
    own: OwnWays = field(default_factory=OwnWays)
    now_s: float = 0.0
    step: Step | None = None
    knobs: frozenset[str] = frozenset({"llc_masks"})

    def tick(self, times: int = 1) -> Step:
        for _ in range(times):
            self.now_s += 1.0
            snapshot, target = self._snapshot(), self._target()
            self.step = own_ways.advance(self.own, snapshot, target, PolicySettings())
            assert own_ways.advance(self.own, snapshot, target, PolicySettings()) == self.step, "pure"
            self.own = self.step.own
        assert self.step is not None
        return self.step

    def _snapshot(self) -> Snapshot:
        views = []
        for name, lra in self.lras.items():
            cpus = CpuSet.of((2 * lra.domain, 2 * lra.domain + 1))
            use = lra.holds * MIB if isinstance(lra.holds, float) else lra.holds
            sample = (
                Sample(name, self.now_s, 1.0, domains=(DomainUse(lra.domain, use),)) if lra.there else None
            )
            spec = WorkloadSpec(name, Kind.LRA, f"/{name}")
            views.append(WorkloadView(spec, sample, enforceable=self.knobs, enforced=True, allowed=cpus))
        views.append(
            WorkloadView(
                WorkloadSpec("pi", Kind.BATCH, "/pi"), Sample("pi", self.now_s, 1.0), enforceable=self.knobs,
                enforced=True,
            )
        )  # fmt: skip
        return Snapshot(0, self.now_s, 1.0, self.view, tuple(views))

    def _target(self) -> TargetState:
        batch = Settings() if self.batch_mask is None else Settings(llc_masks=((0, self.batch_mask),))
        here, nothing = {n: lra for n, lra in self.lras.items() if lra.there}, untouched(4)
        decisions = tuple(
            Decision(
                self.now_s, name, Verdict(lra.health, lra.cause, 0.0, lra.evidence), Action.HOLD, NOT_MEASURED,
                NOT_MEASURED, nothing, nothing, (), "best effort", "perph",
            )
            for name, lra in here.items()
        )  # fmt: skip
        return TargetState({**{name: Settings() for name in self.lras}, "pi": batch}, decisions)

    def masks(self, name: str) -> Mapping[int, int]:
        assert self.step is not None
        found = self.step.settings[name].llc_masks
        return {} if found is KEEP else dict(found)

    def reason(self, name: str) -> str:
        assert self.step is not None
        return next(d.reason for d in self.step.decisions if d.workload == name)

    def all_suffer(self, *names: str) -> None:
        for name in names or tuple(self.lras):
            self.lras[name].health, self.lras[name].cause = Health.DEGRADED, Cause.LLC

    def all_well(self) -> None:
        for lra in self.lras.values():
            lra.health, lra.cause = Health.HEALTHY, Cause.NONE


def two(**more: Reading) -> Play:
    play = Play({"db": Lra(holds=3.5), "web": Lra(holds=2.0)})
    for name, holds in more.items():
        play.lras[name].holds = holds
    return play


def test_two_that_are_both_short_of_cache_get_ways_of_their_own_and_no_fewer_than_are_enough() -> None:
    play = two()
    play.tick(FEWEST)
    assert play.masks("db") == play.masks("web") == {}
    play.all_suffer()
    play.tick(SHORT_TICKS)
    db, web, batch = play.masks("db")[0], play.masks("web")[0], play.masks("pi")[0]
    assert db & web == db & batch == web & batch == 0
    assert db.bit_count() >= 4
    assert web.bit_count() >= 2
    assert db | web | batch == ALL, "what is left over is given to them"
    assert 1 not in play.masks("db"), "nothing is said of a domain where it does not run"
    assert "not shared with web" in play.reason("db")
    assert play.step is not None
    (decision,) = (d for d in play.step.decisions if d.workload == "db")
    assert decision.action is Action.GROW
    assert decision.chosen.own_ways == db.bit_count()
    assert "LLC ways apart from other LRAs" in str(decision.chosen)


def test_a_verdict_that_only_stands_until_the_next_report_proves_nothing_new() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer()
    play.tick()
    waits = (Evidence(AWAITED, NOT_MEASURED, NOT_MEASURED, "", "the next report is not due yet"),)
    for lra in play.lras.values():
        lra.evidence = waits
    play.tick(20)
    assert play.masks("db") == play.masks("web") == {}, "one judged sample is not three"
    for lra in play.lras.values():
        lra.evidence = ()
    play.tick(SHORT_TICKS - 1)
    apart = play.masks("db")
    assert apart
    for lra in play.lras.values():
        lra.evidence = waits
    play.tick(20)
    assert play.masks("db") == apart, "the verdict is of a sample from before"


def test_one_that_is_on_target_is_never_narrowed() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer("db")
    play.tick(20)
    assert play.masks("db") == play.masks("web") == {}


def test_those_of_different_domains_do_not_disturb_each_other() -> None:
    play = two()
    play.lras["web"].domain = 1
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(20)
    assert play.masks("db") == play.masks("web") == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"db": NOT_MEASURED}, "it is unknown how much cache is enough for db"),
        ({"db": 8.0, "web": 6.0}, "14 exclusive ways are wanted"),
    ],
)
def test_where_it_cannot_be_the_masks_overlap_and_the_decision_says_why(
    change: dict[str, Reading], why: str
) -> None:
    play = two(**change)
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    assert play.masks("db") == play.masks("web") == {}
    assert why in play.reason("db")
    assert "shares the cache with web" in play.reason("db")


def test_where_closids_do_not_suffice_that_is_said() -> None:
    play = two()
    play.view = host(classes=3)  # the default group, and two
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    assert play.masks("db") == play.masks("web") == {}
    assert "too few CLOSIDs" in play.reason("web")
    third = Play({"db": Lra(holds=2.0), "mq": Lra(holds=2.0), "web": Lra(holds=4.0)}, host(classes=4))
    third.tick(FEWEST)
    third.all_suffer()
    third.tick(SHORT_TICKS)
    assert third.masks("db") == third.masks("mq")
    assert third.masks("web")[0] & third.masks("db")[0] == 0
    assert "(shares a CLOSID with mq)" in third.reason("db")


def test_ways_that_were_too_few_are_given_up_for_a_while_that_doubles() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    assert play.masks("db")
    play.tick(SHORT_TICKS)
    assert play.masks("db") == {}
    assert play.step is not None
    assert [o.kept for o in play.step.outcomes] == [False, False]
    assert "short of cache with separate ways: " in play.reason("db")
    waits = []
    for _ in range(2):
        since_s = play.now_s
        while not play.masks("db"):
            play.tick()
        waits.append(play.now_s - since_s)
        while play.masks("db"):
            play.tick()
    assert waits[1] > 1.9 * waits[0] > 1.9 * 50


def test_after_a_while_everybody_has_the_whole_cache_again() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    play.all_well()
    recheck_s = PolicySettings().streaming_recheck_s
    play.tick(int(recheck_s) - 1)
    assert play.masks("db")
    play.tick(2)
    assert play.masks("db") == {}


def test_it_ends_with_the_one_that_goes() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    play.lras["web"].there = False
    play.tick()
    assert play.masks("db") == {}


def test_what_is_remembered_is_recorded() -> None:
    play = two()
    play.tick(FEWEST)
    play.all_suffer()
    play.tick(SHORT_TICKS)
    assert decode_tagged(encode_tagged(play.own)) == play.own


# --- the layout ----------------------------------------------------------------------------------------


@given(
    needs=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), min_size=2, max_size=4),
    batch=st.integers(1, 4),
    shareable=st.sampled_from([0, 0x600, 0x003]),
    closids=st.integers(2, 6),
)
def test_a_layout_keeps_to_its_demands(
    needs: dict[str, int], batch: int, shareable: int, closids: int
) -> None:
    here = host(shareable=shareable)
    try:
        found = way_layout.lay_apart(here, needs, batch, closids, {})
    except Infeasible:
        assert sum(needs.values()) + batch > WAYS - shareable.bit_count() or closids < len(needs) + 1
        return
    masks = dict(found.masks)
    assert len({*masks.values(), found.batch}) <= closids
    for name, ways in needs.items():
        assert masks[name].bit_count() >= ways
        assert masks[name] & (found.batch | shareable) == 0
        for other in needs.keys() - {name}:
            together = any(name in pool and other in pool for pool in found.pooled)
            assert together or masks[name] & masks[other] == 0
    assert found.batch.bit_count() == batch


def test_batch_is_at_the_end_that_devices_share() -> None:
    assert way_layout.batch_mask(host(), 3) == 0x700
    assert way_layout.batch_mask(host(shareable=0x600), 3) == 0x700
    assert way_layout.batch_mask(host(shareable=0x003), 3) == 0x007
