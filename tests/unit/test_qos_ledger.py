"""Bands, the ledger's invariants over random histories, and overcommit against series with a known peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.domain.topology import Core, L3Domain, Topology
from perphd.qos.bands import MEANINGS, MEMORY_LIMIT_RATIO, Aspect, QosBand, Size, chosen
from perphd.qos.ledger import (
    RESERVATION_TTL_S,
    Amounts,
    Bid,
    Capacity,
    CapacityRequest,
    Holding,
    HostLedger,
    LedgerRefusal,
    RefusalCause,
    bid,
    capacity_of,
    commit,
    grant,
    measured,
    revoke,
    settled,
    violations,
)
from perphd.qos.overcommit import (
    Backtest,
    Overcommit,
    Slack,
    after_window,
    offered,
    slack,
)

GIB = 1 << 30
HOST = Capacity(
    (
        tuple(CpuSet.of((n, n + 8)) for n in range(4)),
        tuple(CpuSet.of((n, n + 8)) for n in range(4, 8)),
    ),
    64 * GIB,
)
NAMES = ("a", "b", "c", "d", "e", "f")


def _request(holder: str, band: QosBand, cpus: float, gib: int = 1) -> CapacityRequest:
    return CapacityRequest(holder, band, Amounts(cpus, gib * GIB))


def _granted(ledger: HostLedger, *requests: CapacityRequest) -> HostLedger:
    for request in requests:
        after = grant(ledger, request)
        assert isinstance(after, HostLedger), after
        ledger = after
    return ledger


def _cause(result: HostLedger | LedgerRefusal) -> RefusalCause:
    assert isinstance(result, LedgerRefusal)
    return result.cause


# --- bands ---------------------------------------------------------------------------------------------------


def test_a_full_kernel_gives_every_band_its_best_mechanisms() -> None:
    present = {m.needs for band in MEANINGS.values() for ladder in band.values() for m in ladder}
    for band in QosBand:
        for choice in chosen(band, present):
            assert choice.mechanism == MEANINGS[band][choice.aspect][0]
            assert choice.missing == ()


def test_a_host_without_cpusets_falls_back_and_names_what_it_lacks() -> None:
    by_aspect = {choice.aspect: choice for choice in chosen(QosBand.GOLD, {"cpu.shares", "memory.low"})}
    cores = by_aspect[Aspect.CORES]
    assert cores.mechanism is not None
    assert (cores.mechanism.knob, cores.mechanism.value) == ("cpu.shares", Size.RESERVED_CPUS)
    assert [m.knob for m in cores.missing] == ["cpuset.cpus", "cpu.weight"]
    assert (
        str(by_aspect[Aspect.MEMORY_PROTECTION])
        == "memory protection: memory.low = its reserved memory (this host lacks memory.min)"
    )
    assert str(by_aspect[Aspect.IO_LATENCY]) == "io latency: none (this host lacks io.latency)"


def test_copper_is_killed_and_scheduled_after_everybody_else() -> None:
    order = {band: MEANINGS[band][Aspect.OOM_ORDER][0].value for band in QosBand}
    assert sorted(order, key=lambda band: order[band]) == [
        QosBand.GOLD,
        QosBand.SYSTEM,
        QosBand.SILVER,
        QosBand.COPPER,
    ]
    throttling = {Aspect.CPU_CEILING, Aspect.MEMORY_CEILING, Aspect.IO_CEILING, Aspect.BANDWIDTH}
    for band in QosBand:
        assert band.protected == (band is not QosBand.COPPER)
        assert bool(throttling & MEANINGS[band].keys()) == (band is QosBand.COPPER)


# --- the ledger ----------------------------------------------------------------------------------------------


def test_gold_owns_whole_cores_of_the_cache_that_just_fits() -> None:
    ledger = _granted(HostLedger(HOST), _request("a", QosBand.GOLD, 3), _request("b", QosBand.GOLD, 2))
    a, b = ledger.held_by("a"), ledger.held_by("b")
    assert a is not None
    assert b is not None
    assert (str(a.cores), a.amounts.cpus) == ("0-1,8-9", 4.0)  # 3 CPUs are 2 cores of 2 threads
    assert str(b.cores) == "2,10"  # the first cache has fewer free cores, and enough
    assert str(ledger.shared_cores) == "3-7,11-15"
    wide = _granted(ledger, _request("c", QosBand.GOLD, 9)).held_by("c")
    assert wide is not None
    assert str(wide.cores) == "3-7,11-15"  # no cache has enough: the emptiest first


def test_gold_and_silver_share_the_capacity() -> None:
    ledger = _granted(HostLedger(HOST), _request("a", QosBand.GOLD, 8), _request("b", QosBand.SILVER, 7.5))
    assert _cause(grant(ledger, _request("c", QosBand.GOLD, 1))) is RefusalCause.FULL  # 2 CPUs for 0.5 left
    refused = grant(ledger, _request("c", QosBand.SILVER, 0.6))
    assert isinstance(refused, LedgerRefusal)
    assert (
        refused.reason
        == "c asks for 0.6 CPUs and 1024 MiB in silver, but only 0.5 CPUs and 63488 MiB are not reserved"
    )
    assert _cause(grant(ledger, _request("c", QosBand.SYSTEM, 0.5, 63))) is RefusalCause.FULL
    assert violations(_granted(ledger, _request("c", QosBand.SYSTEM, 0.5))) == ()


def test_copper_takes_slack_alone_and_reports_its_excess() -> None:
    ledger = HostLedger(HOST)
    assert _cause(grant(ledger, _request("job", QosBand.COPPER, 1))) is RefusalCause.FULL
    ledger = measured(ledger, Amounts(), Amounts(6.0, 8 * GIB))
    ledger = _granted(ledger, _request("job", QosBand.COPPER, 4, 6))
    assert ledger.copper_allocatable == Amounts(2.0, 2 * GIB)
    less = measured(ledger, Amounts(12.0, 0), Amounts(1.0, 8 * GIB))
    assert (less.copper_allocatable.cpus, less.copper_excess) == (0.0, Amounts(3.0, 0))
    assert measured(less, Amounts(13.0, 0), Amounts(1.0, 8 * GIB)).generation == less.generation


def test_a_change_on_an_earlier_generation_is_refused() -> None:
    ledger = HostLedger(HOST)
    first = grant(ledger, _request("a", QosBand.SILVER, 1), generation=0)
    assert isinstance(first, HostLedger)
    assert _cause(grant(first, _request("b", QosBand.SILVER, 1), generation=0)) is RefusalCause.STALE
    assert _cause(revoke(first, "a", generation=0)) is RefusalCause.STALE
    assert _cause(revoke(first, "b")) is RefusalCause.UNKNOWN
    assert _cause(grant(first, _request("a", QosBand.GOLD, 1))) is RefusalCause.HELD
    assert _cause(grant(first, _request("b", QosBand.GOLD, -1))) is RefusalCause.INVALID
    assert _cause(grant(first, CapacityRequest("b", QosBand.SILVER, Amounts()))) is RefusalCause.INVALID


def test_of_ten_bids_in_one_window_the_highest_score_wins() -> None:
    ledger = HostLedger(HOST)
    for n in range(10):
        after = bid(ledger, Bid(_request(f"s{n}", QosBand.SILVER, 12), float(n % 7)), 0, now_s=5.0 + n / 1000)
        assert isinstance(after, HostLedger)
        ledger = after
    assert settled(ledger, 5.05).winner is None
    end = settled(ledger, 5.1)
    assert end.winner is not None
    assert end.winner.holder == "s6"
    assert {refusal.cause for refusal in end.refused} == {RefusalCause.OUTBID}
    assert len(end.refused) == 9
    assert end.ledger.reserved.cpus == 12.0
    late = bid(end.ledger, Bid(_request("late", QosBand.SILVER, 1), 9.0), 0, 5.2)
    assert _cause(late) is RefusalCause.STALE


def test_a_reservation_is_committed_once_or_expires() -> None:
    after = bid(HostLedger(HOST), Bid(_request("a", QosBand.GOLD, 4), 1.0), 0, 0.0)
    assert isinstance(after, HostLedger)
    end = settled(after, 1.0)
    assert end.winner is not None
    token = end.winner.token
    elsewhere = _granted(end.ledger, _request("b", QosBand.SILVER, 1))  # another change does not matter
    assert _cause(commit(elsewhere, "a", token + 1, 2.0)) is RefusalCause.STALE
    kept = commit(elsewhere, "a", token, 2.0)
    assert isinstance(kept, HostLedger)
    assert _cause(commit(kept, "a", token, 2.0)) is RefusalCause.UNKNOWN
    assert settled(kept, 100.0).ledger == kept
    crashed = settled(elsewhere, 1.0 + RESERVATION_TTL_S).ledger
    assert crashed.held_by("a") is None
    assert crashed.generation == elsewhere.generation + 1
    assert _cause(commit(elsewhere, "a", token, 1.0 + RESERVATION_TTL_S)) is RefusalCause.UNKNOWN


AMOUNTS = st.builds(
    Amounts, st.floats(0, 20).map(lambda cpus: round(cpus, 2)), st.integers(0, 80).map(lambda gib: gib * GIB)
)
REQUESTS = st.builds(CapacityRequest, st.sampled_from(NAMES), st.sampled_from(QosBand), AMOUNTS)
OPERATIONS = st.one_of(
    st.tuples(st.just("grant"), REQUESTS),
    st.tuples(st.just("bid"), st.builds(Bid, REQUESTS, st.floats(-1, 1))),
    st.tuples(st.just("revoke"), st.sampled_from(NAMES)),
    st.tuples(st.just("measured"), AMOUNTS),
    st.tuples(st.just("settled"), st.floats(0, 6)),
    st.tuples(st.just("commit"), st.sampled_from(NAMES)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_no_history_breaks_an_invariant_or_touches_gold_and_silver(history: list[tuple[str, object]]) -> None:
    ledger, now_s = HostLedger(HOST), 0.0
    for name, value in history:
        before, revoked = ledger, ""
        if name == "grant" and isinstance(value, CapacityRequest):
            result: HostLedger | LedgerRefusal = grant(ledger, value)
        elif name == "bid" and isinstance(value, Bid):
            result = bid(ledger, value, ledger.generation, now_s)
        elif name == "revoke" and isinstance(value, str):
            result, revoked = revoke(ledger, value), value
        elif name == "measured" and isinstance(value, Amounts):
            result = measured(ledger, Amounts(), value)
        elif name == "commit" and isinstance(value, str):
            held = ledger.held_by(value)
            result = commit(ledger, value, held.token if held else 0, now_s)
        else:
            assert isinstance(value, float)
            now_s += value
            result = settled(ledger, now_s).ledger
        if isinstance(result, LedgerRefusal):
            assert result.reason
            continue
        ledger = result
        assert violations(ledger) == ()
        assert ledger.copper_allocatable.cpus >= 0
        assert ledger.copper_allocatable.memory_bytes >= 0
        assert ledger.generation >= before.generation
        assert (ledger.grants == before.grants) or ledger.generation > before.generation
        if name in ("grant", "commit"):  # copper is granted no more than its slack
            assert ledger.copper_excess.fits(before.copper_excess)
        for held in before.grants:
            expired = held.expires_s is not None and held.expires_s <= now_s
            if held.band.protected and held.holder != revoked and not expired:
                after = ledger.held_by(held.holder)
                assert after is not None
                assert replace(after, expires_s=held.expires_s) == held


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUESTS, max_size=12))
def test_revoking_everything_gives_everything_back(requests: list[CapacityRequest]) -> None:
    ledger = measured(HostLedger(HOST), Amounts(), Amounts(10.0, 10 * GIB))
    for request in requests:
        after = grant(ledger, request)
        ledger = ledger if isinstance(after, LedgerRefusal) else after
    for held in ledger.grants[::-1]:
        after = revoke(ledger, held.holder)
        assert isinstance(after, HostLedger)
        ledger = after
    assert (ledger.reserved, ledger.gold_cores, ledger.copper_allocatable) == (
        Amounts(),
        CpuSet(),
        Amounts(10.0, 10 * GIB),
    )


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((Holding("a", QosBand.SILVER, Amounts(17.0)),), "are reserved, but the host has only"),
        ((Holding("a", QosBand.GOLD, Amounts(2.0)),), "owns 0 CPUs, but was granted 2"),
        ((Holding("a", QosBand.SILVER, Amounts(2.0), CpuSet.of((0, 8))),), "which silver must not"),
        (
            (
                Holding("a", QosBand.GOLD, Amounts(2.0), CpuSet.of((0, 8))),
                Holding("b", QosBand.GOLD, Amounts(2.0), CpuSet.of((0, 8))),
            ),
            "another gold",
        ),
    ],
)
def test_a_broken_ledger_is_recognised(held: tuple[Holding, ...], words: str) -> None:
    assert any(words in text for text in violations(HostLedger(HOST, grants=held)))


def test_the_capacity_of_a_host_is_its_usable_cores_by_cache() -> None:
    cores = tuple(Core(0, n, CpuSet.of((n, n + 4))) for n in range(4))
    caches = (L3Domain(0, CpuSet.parse("0-1,4-5"), 1 << 25), L3Domain(1, CpuSet.parse("2,6"), 1 << 25))
    topology = Topology(cores, caches, (), CpuSet.parse("0-7"), isolated=CpuSet.parse("1"), memory_bytes=GIB)
    capacity = capacity_of(topology)
    assert [[str(core) for core in domain] for domain in capacity.domains] == [["0,4", "5"], ["2,6"], ["3,7"]]
    assert capacity.amounts == Amounts(7.0, GIB)


# --- overcommit ----------------------------------------------------------------------------------------------


def test_the_first_margin_is_five_per_cent_of_what_is_reserved() -> None:
    assert slack(Overcommit(), capacity=16, reserved=10, predicted=4) == pytest.approx(
        Slack(5.5, 6, 0.5, 11.5)
    )
    assert slack(Overcommit(), 16, 10, predicted=12) == pytest.approx(Slack(0, 6, 0.5, 6))
    assert slack(Overcommit(), 16, 20, predicted=4) == pytest.approx(Slack(15, 0, 1.0, 15))


def test_memory_is_never_filled_beyond_its_limit() -> None:
    learned = Overcommit()
    assert slack(learned, 100, 50, 30, limit=80).copper == pytest.approx(80 - 30 - 2.5)
    assert slack(learned, 100, 90, 85, limit=80).copper == 0.0
    ledger = _granted(HostLedger(HOST), _request("a", QosBand.SILVER, 8, 40))
    after = offered(ledger, learned, learned, Amounts(2.0, 30 * GIB), Amounts(1.0, 30 * GIB))
    margin = 0.05 * 40 * GIB
    assert after.copper_offered.memory_bytes == int(MEMORY_LIMIT_RATIO * 64 * GIB - 30 * GIB - margin)
    assert after.copper_offered.cpus == pytest.approx(16 - 2 - 0.4)
    assert violations(after) == ()


@pytest.mark.parametrize("kind", ["noise", "walk", "spikes"])
def test_use_exceeds_what_copper_leaves_in_at_most_one_window_of_a_hundred(kind: str) -> None:
    random = np.random.default_rng(11)
    n, reserved = 4000, 10.0
    if kind == "noise":
        peaks = 4 + random.normal(0, 0.5, n)
    elif kind == "walk":
        peaks = 4 + 2 * np.sin(np.arange(n) / 40) + random.normal(0, 0.3, n)
    else:
        peaks = 3 + random.exponential(0.5, n)
    peaks = np.clip(peaks, 0, reserved)
    learned = Overcommit()
    for n in range(1, len(peaks)):
        predicted = float(peaks[n - 1])  # a poor forecast: the last window's peak
        given = slack(learned, 16, reserved, predicted)
        learned = after_window(learned, reserved, predicted, given, float(peaks[n]))
    assert learned.backtest.windows == len(peaks) - 1
    assert learned.backtest.exceeded_ratio <= 0.01
    assert learned.backtest.given_ratio > 0.2  # and copper gets something worth having


def test_a_forecast_that_misses_widens_the_margin_and_is_counted() -> None:
    learned = Overcommit()
    given = slack(learned, 16, 10, 2)
    assert after_window(learned, 0, 2, given, 5) == learned
    missed = after_window(learned, 10, 2, given, 5)
    assert missed.backtest == Backtest(1, 1, 7.5, 10.0)  # 5 used, and copper left 2.5: exceeded
    assert missed.margin_ratio >= 0.3
