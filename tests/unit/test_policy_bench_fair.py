"""What makes the policy bench fair: paces, who is told, noise by counting, searches apart from settled states."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.reading import value_or
from perphd.domain.workload import Touch
from perphd.sim.node.machine import Machine
from tools.bench.policies import ablation, counting, guard, scenarios
from tools.bench.policies.catalogue import ENTRANTS, entrant, place
from tools.bench.policies.driver import run
from tools.bench.policies.measure import measure
from tools.bench.policies.peers import clite
from tools.bench.policies.scene import Noise, Scenario
from tools.bench.policies.world import World

MACHINE = Machine(1, 6, 2, llc_ways=6, l3_bytes=8 << 20, memory_bytes_per_s=20e9)


def tiny(length_s: float = 30.0, starts_s: float = 10.0) -> Scenario:
    actors = (
        scenarios.service(MACHINE, "masstree", 0.5),
        scenarios.batch("batch-thrash", threads=12, starts_s=starts_s),
    )
    return Scenario(
        "tiny", "paper", "a small host", MACHINE, actors, length_s, count_from_s=10.0, step_s=0.25
    )


class Watcher:
    """Does nothing and remembers when it was asked; ``searching`` before a time."""

    name = "watcher"

    def __init__(self, until_s: float = 0.0) -> None:
        self.asked_s: list[float] = []
        self._until_s = until_s

    def decide(self, snapshot: Snapshot) -> TargetState:
        self.asked_s.append(round(snapshot.at_s, 6))
        return TargetState({}, memory=clite.CliteMemory(("a",), kept=snapshot.at_s >= self._until_s))


def asked(name: str, starts_s: float = 10.3) -> list[float]:
    watcher = Watcher()
    entrant(name).run(tiny(14.0, starts_s), watcher, 0)
    return [at_s for at_s in watcher.asked_s if 9.6 < at_s < 11.4]


def test_everybody_can_be_asked_at_the_same_pace_and_told_of_starts():
    assert asked("parties") == [10.0, 10.5, 11.0]
    assert asked("parties@0.25") == asked("perph@0.25+untold") == [9.75 + 0.25 * n for n in range(7)]
    assert asked("parties+told") == [10.0, 10.3, 10.5, 10.55, 11.0]
    assert asked("clite@0.5+told") == asked("parties+told")
    assert asked("perph@1+untold") == [10.0, 11.0]
    assert 10.3 in asked("perph")
    assert 10.3 not in asked("perph+untold")


@pytest.mark.parametrize("name", ["perph-better", "perph@", "parties@x", "perph+shouted", ""])
def test_unknown_names_are_refused(name: str):
    with pytest.raises(KeyError):
        entrant(name)


def test_variants_stand_behind_those_they_vary():
    names = ["perph-prior", "parties@0.25", "perph", "parties", "none"]
    assert sorted(names, key=place) == ["none", "parties", "parties@0.25", "perph", "perph-prior"]


def test_touch_batch_reaches_every_lra():
    seen: list[Touch] = []
    who = entrant("perph-batch")
    who.run(tiny(3.0), Watcher(), 0, watch=lambda s, _: seen.extend(v.spec.touch for v in s.workloads))
    assert set(seen) == {Touch.BATCH}


def test_arrivals_leave_the_grid_by_the_seed_alone():
    plain, moved = tiny(), tiny().counted()
    assert plain.drawn(3) is plain
    starts = {moved.drawn(seed).actors[1].starts_s for seed in range(5)}
    assert len(starts) == 5
    assert all(10.0 <= at_s < 11.0 for at_s in starts)
    assert moved.drawn(2) == moved.drawn(2)
    assert moved.drawn(2).drawn(7) == moved.drawn(2), "drawn once and for all"
    assert all(moved.drawn(seed).actors[0].starts_s == 0.0 for seed in range(3)), "there from the start"


# -- counting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [3.0, 50.0, 5000.0])
def test_counts_scatter_by_their_root(expected: float):
    random = Random(1)
    found = [counting.count(random, expected) for _ in range(4000)]
    assert statistics.fmean(found) == pytest.approx(expected, rel=0.05)
    assert statistics.stdev(found) == pytest.approx(math.sqrt(expected), rel=0.07)


@pytest.mark.parametrize("requests", [40, 400, 40_000])
def test_a_percentile_scatters_as_that_of_so_many_requests(requests: int):
    random, sigma = Random(2), 0.5
    truth = tuple(math.exp(sigma * z) for z in (0.0, 1.6448536, 2.3263479))
    told = [counting.percentiles(random, requests, truth) for _ in range(1500)]  # type: ignore[arg-type]
    for place_of, level in ((0, 0.5), (1, 0.95)):
        logs = [math.log(item[place_of]) for item in told]
        z = truth[place_of]
        density = math.exp(-0.5 * (math.log(z) / sigma) ** 2) / math.sqrt(2 * math.pi) / sigma
        expected = math.sqrt(level * (1 - level) / requests) / density
        assert statistics.stdev(logs) == pytest.approx(expected, rel=0.25)
        assert statistics.fmean(logs) == pytest.approx(
            math.log(z), abs=3 * expected / math.sqrt(requests) + 0.1
        )


@given(st.floats(0.1, 1e6), st.integers(0, 1000))
def test_percentiles_keep_their_order(requests: float, seed: int):
    p50, p95, p99 = counting.percentiles(Random(seed), requests, (1.0, 2.0, 5.0))
    assert 0.0 < p50 <= p95 <= p99


def test_every_channel_of_a_counted_world_has_noise():
    plain, told = World(tiny(), 0), World(tiny().counted(), 0)
    names = (
        "work_rate_per_s",
        "cpu_usage_cores",
        "run_delay_cores",
        "cpu_some_pct",
        "mips",
        "latency_p95_ms",
    )
    scatter: dict[str, dict[str, float]] = {}
    for label, world in (("plain", plain), ("counted", told)):
        rows: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(40):
            interval = world.advance(0.25)
            sample = next(s for s in world.samples(interval) if s.workload == "masstree")
            truth = interval.outcomes["masstree"]
            known = {
                "work_rate_per_s": truth.work_per_s, "cpu_usage_cores": truth.usage_cores, "mips": truth.mips,
                "run_delay_cores": truth.run_delay_cores, "cpu_some_pct": 100 * truth.cpu_some,
                "latency_p95_ms": truth.p95_ms,
            }  # fmt: skip
            for name in names:
                rows[name].append(value_or(sample.reading(name), 0.0) / max(known[name], 1e-9))
        scatter[label] = {name: statistics.stdev(values) for name, values in rows.items()}
    for name in ("work_rate_per_s", "cpu_usage_cores", "run_delay_cores", "cpu_some_pct"):
        assert scatter["plain"][name] < 1e-9 < 1e-3 < scatter["counted"][name], name
    assert scatter["counted"]["mips"] > 0.004


def test_the_plain_world_knows_nothing_of_it():
    assert tiny().noise is Noise.PLAIN
    twice = [run(tiny(12.0), Watcher(), 1.0, 4).rounds[-1].interval.outcomes for _ in range(2)]
    assert twice[0] == twice[1]


# -- searches ------------------------------------------------------------------------------------------


def test_only_what_follows_a_search_counts_as_settled():
    late = run(tiny(50.0), Watcher(until_s=40.0), 1.0, 0)
    never = run(tiny(50.0), Watcher(until_s=1e9), 1.0, 0)
    at_once = run(tiny(50.0), Watcher(), 1.0, 0)
    found = {label: measure(r, {}) for label, r in (("late", late), ("never", never), ("at once", at_once))}
    assert found["late"].search_share == pytest.approx(0.75)
    assert found["never"].search_share == 1.0
    assert found["at once"].search_share == 0.0
    assert math.isnan(found["never"].steady_violation_share)
    assert not math.isnan(found["late"].steady_violation_share)


def test_perph_with_its_prior_alone_learns_no_correction():
    registry = ablation.prior_only()
    model = registry.model("db")
    assert model is registry.model("db")
    ENTRANTS["perph"].run(tiny(20.0), ENTRANTS["perph"].make(tiny(), 0), 0)  # the whole one works beside it
    who = replace(entrant("perph-prior"), registry=lambda: registry)
    who.run(tiny(25.0, starts_s=5.0), who.make(tiny(), 0), 0)
    assert registry.model("masstree").samples > 10
    assert registry.model("masstree").cells == 0


def test_the_guard_tells_a_run_that_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setattr(scenarios, "quick", lambda: [tiny(14.0)])
    words = ["--policies", "none,static", "--kept", str(tmp_path / "kept.jsonl")]
    assert guard.main(words) == 0, "nothing was kept yet"
    assert guard.main(words) == 0
    assert "DIFFERS" not in capsys.readouterr().out
    monkeypatch.setitem(ENTRANTS, "static", ENTRANTS["none"])
    assert guard.main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "DIFFERS" in line] == ["tiny|static|0"]
