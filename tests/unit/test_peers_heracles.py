"""Heracles against its published loops (ISCA 2015)."""

from __future__ import annotations

import pytest

from tests.unit.peers_world import Play, batch, cores_of, lra, ways_of
from tools.bench.policies.peers.heracles import COOL_DOWN_S, Growth, HeraclesPolicy

PEAKS = {"lc": 100.0}


def play(**options) -> Play:
    return Play(HeraclesPolicy(peak_load_per_s=PEAKS, **options))


@pytest.mark.parametrize("literal", [False, True])
def test_starts_with_the_service_alone_and_then_gives_one_core_and_a_tenth_of_the_cache(literal):
    world = play(literal=literal)
    first = world.step(lra(load=50), batch())
    assert first["be"].frozen is True
    settings = world.until(3.0, lra(load=50), batch())
    assert settings["be"].frozen is not True
    assert cores_of(settings["be"]) == 1
    assert world.memory.ways in (1, 2)  # the first way on trial may be there already
    assert cores_of(settings["lc"]) == 7


@pytest.mark.parametrize("literal", [False, True])
def test_a_violation_freezes_batch_and_cools_down_for_five_minutes(literal):
    world = play(literal=literal)
    world.until(20.0, lra(load=50), batch())
    assert world.memory.enabled
    world.until(40.0, lra(latency_ms=12.0, load=50), batch())
    assert not world.memory.enabled
    stopped_s = world.memory.cool_until_s - COOL_DOWN_S
    settings = world.until(stopped_s + COOL_DOWN_S - 16.0, lra(load=50), batch())
    assert settings["be"].frozen is True
    settings = world.until(stopped_s + COOL_DOWN_S + 20.0, lra(load=50), batch())
    assert settings["be"].frozen is not True


def test_load_above_85_pct_of_the_peak_disables_and_below_80_enables():
    world = play()
    world.until(20.0, lra(load=50), batch())
    world.until(40.0, lra(load=90), batch())
    assert not world.memory.enabled
    world.until(60.0, lra(load=82), batch())
    assert not world.memory.enabled, "between the two nothing changes"
    world.until(80.0, lra(load=75), batch())
    assert world.memory.enabled


def test_little_slack_forbids_growth_and_less_leaves_two_cores():
    world = play()
    world.until(60.0, lra(load=50), batch())
    cores = world.memory.cores
    assert cores > 2
    world.until(80.0, lra(latency_ms=9.2, load=50), batch())  # slack 8 %
    held = world.memory.cores
    world.until(100.0, lra(latency_ms=9.2, load=50), batch())
    assert world.memory.cores == held
    world.until(120.0, lra(latency_ms=9.7, load=50), batch())  # slack 3 %
    assert world.memory.cores == 2


def test_the_printed_order_lets_a_low_load_hide_little_slack():
    world = play(literal=True)
    world.until(60.0, lra(load=50), batch())
    before = world.memory.cores
    world.until(100.0, lra(latency_ms=9.7, load=50), batch())
    assert world.memory.may_grow
    assert world.memory.cores >= before
    world.until(130.0, lra(latency_ms=9.7, load=82), batch())
    assert world.memory.cores == 2, "not hidden where the load is between 80 and 85 %"


def test_a_way_that_lowers_no_traffic_is_taken_back_and_cores_follow():
    world = play()
    world.until(10.0, lra(load=50), batch())
    assert world.memory.growth is Growth.CORES
    assert world.memory.ways == 1


def test_ways_are_kept_while_they_lower_traffic_and_help():
    world = play()
    traffic, mips = 4e9, 1000.0
    settings = world.until(3.0, lra(load=50), batch(bw=traffic, mips=mips))
    for _ in range(4):
        traffic, mips = traffic * 0.9, mips * 1.1
        settings = world.until(world.now_s + 2.0, lra(load=50), batch(bw=traffic, mips=mips))
    assert world.memory.growth is Growth.LLC
    assert ways_of(settings["be"]) >= 4


def test_traffic_above_the_limit_takes_cores_back():
    world = play(peak_bytes_per_s=20e9)
    world.until(30.0, lra(load=50), batch())
    cores = world.memory.cores
    assert cores >= 4
    each = 21e9 / cores
    world.until(world.now_s + 2.0, lra(load=50, bw=1e9), batch(bw=cores * each))
    assert world.memory.cores <= cores - int((22e9 - 18e9) / each)


def test_literally_a_second_service_is_best_effort_but_is_not_frozen():
    world = Play(HeraclesPolicy(literal=True))
    settings = world.step(lra("lc", priority=200), lra("other"), batch())
    assert cores_of(settings["other"]) == 1
    assert settings["other"].frozen is not True
    assert settings["be"].frozen is True
    sane = Play(HeraclesPolicy()).step(lra("lc", priority=200), lra("other"), batch())
    assert sane["other"].cpus == sane["lc"].cpus
