"""Calibration: curves measured on a model machine, kept in a file, and what is looked up in them."""

from __future__ import annotations

import itertools
import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdt import (
    BandwidthUnit,
    Broken,
    Busy,
    Gone,
    GroupRef,
    Groups,
    Invalid,
    ResctrlError,
    Unsupported,
)
from rdt.calibrate import PREFIX, Calibrator, Plan, Step, levels_to_measure, plan
from rdt.curves import BandwidthLookup, Calibration, Curve, Point
from rdt.probe import Streams, idle_cores, l3_domains, machine_name
from rdt.reading import Unavailable
from tests.unit.rdt_model import GB, IDLE, Model, delivered, sysfs
from tests.unit.rdt_world import ROOT, World


def calibrator(world: World, model: Model, told: list[str] | None = None) -> Calibrator:
    groups = Groups(world.open(), PREFIX, sleep=model.sleep, clock=lambda: world.tree.now_s)
    lines: list[str] = [] if told is None else told
    return Calibrator(groups, model, sleep=model.sleep, clock=lambda: world.tree.now_s, report=lines.append)


def a_plan(world: World, **more: object) -> Plan:
    return plan(world.open().info, IDLE, **more)  # type: ignore[arg-type]


def test_the_measured_curve_is_the_machines_and_idle_levels_are_dropped() -> None:
    world = World()
    told: list[str] = []
    model = Model(world)
    curves = calibrator(world, model, told).run(a_plan(world))
    assert [(each.domain, each.cores) for each in curves] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for curve in curves:
        assert curve.measured_by == "mbm"
        assert [point.level for point in curve.points] == list(range(10, 101, 10))
        for point in curve.points:
            assert point.bytes_per_s == pytest.approx(1.5 * delivered(point.level, curve.cores), rel=1e-3)
        assert [point.level for point in curve.useful()] == [10, 20, 30, 40, 100]
    assert told[1] == (
        "domain 0, 2 cores: 22.5 GB/s unthrottled, levels that make a difference: 10 20 30 40 100"
    )
    assert world.fs.listdir(ROOT) == World().fs.listdir(ROOT)
    assert model.running is None


def test_streams_keep_to_the_fewest_ways_and_only_the_own_group_is_written() -> None:
    world = World()
    calibrator(world, Model(world)).run(a_plan(world, domains=[1], core_counts=[1]))
    assert {path for path, _ in world.writes} == {f"{PREFIX}.probe/schemata", f"{PREFIX}.probe/tasks"}
    assert (f"{PREFIX}.probe/schemata", "L3:0=400;1=400") in world.writes
    assert (f"{PREFIX}.probe/schemata", "MB:1=10") in world.writes


def test_without_counters_the_streams_own_count_is_taken() -> None:
    for world, model in ((World("no-monitoring"), None), (World(), "blind")):
        prober = Model(world, count=model is None)
        idle = {0: ((0,), (1,))}
        (curve,) = calibrator(world, prober).run(plan(world.open().info, idle, domains=[0], core_counts=[1]))
        assert curve.measured_by == "probe"
        assert curve.at(100) == pytest.approx(10 * GB)


def test_an_open_range_is_followed_down_by_octaves_until_little_is_left() -> None:
    world = World("amd")
    model = Model(world)
    steps = (Step(0, (0,)),)
    levels = levels_to_measure(world.open().info.bandwidths["MB"])
    assert levels[:5] == (2048, 1536, 1024, 768, 512)
    (curve,) = calibrator(world, model).run(Plan("MB", levels, steps))
    assert curve.points[0].level == 4  # 0.8 of 10 GB/s, the first below a tenth
    assert curve.useful()[-1].level == 2048
    assert curve.useful()[-2].level == 32  # 64 and more do not bind, 48 hardly


@pytest.mark.parametrize("readings", range(0, 40, 7))
def test_when_streams_end_early_nothing_stays_behind(readings: int) -> None:
    world = World()
    model = Model(world)
    model.fail_after = readings
    with pytest.raises(Broken, match="it ended"):
        calibrator(world, model).run(a_plan(world))
    assert f"{PREFIX}.probe" not in world.fs.listdir(ROOT)
    assert model.running is None


def test_a_machine_that_is_not_quiet_gives_no_curve() -> None:
    world = World()
    model = Model(world)
    taken = model.sleep

    def sleep(seconds: float) -> None:
        model.others = max(0.5, model.others - 0.02)
        taken(seconds)

    model.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(Busy, match="another program uses the memory"):
        calibrator(world, model).run(a_plan(world))
    assert f"{PREFIX}.probe" not in world.fs.listdir(ROOT)


def test_a_second_calibration_leaves_the_first_alone() -> None:
    world = World()
    world.mkdir(f"{PREFIX}.probe")
    world.write(f"{PREFIX}.probe/tasks", "1\n")
    with pytest.raises(Busy, match="another calibration is running"):
        calibrator(world, Model(world)).run(a_plan(world))
    assert world.tids(f"{PREFIX}.probe") == {1}
    world.write("tasks", "1\n")  # left over by one that was killed
    assert len(calibrator(world, Model(world)).run(a_plan(world))) == 4
    assert f"{PREFIX}.probe" not in world.fs.listdir(ROOT)


def test_a_plan_says_what_it_takes_and_what_is_missing() -> None:
    info = World().open().info
    made = plan(info, IDLE)
    assert [(each.domain, each.cpus) for each in made.steps] == [
        (0, (0,)),
        (0, (0, 1)),
        (1, (2,)),
        (1, (2, 3)),
    ]
    assert made.seconds == pytest.approx(4 * (2 + 11 * 0.5))
    for more, kind, words in (
        ({"limit_s": 5.0}, Invalid, "it may take 30 s \\(limit 5 s\\)"),
        ({"core_counts": [3]}, Busy, "2 cores of domain 0 are idle, 3 are needed"),
        ({"core_counts": [0]}, Invalid, "0 cores"),
        ({"domains": [7]}, Invalid, "there is no domain 7; there are 0, 1"),
        ({"resource": "SMBA"}, Unsupported, "does not limit it"),
    ):
        with pytest.raises(kind, match=words):
            plan(info, IDLE, **more)
    with pytest.raises(Busy, match="0 cores of domain 1"):
        plan(info, {0: ((0,),)})
    with pytest.raises(Unsupported, match="the kernel itself controls the bandwidth"):
        plan(World("mba-mbps").open().info, IDLE)


# --- curves ---------------------------------------------------------------------------------------------------

bandwidths = st.floats(0, 1e12, allow_nan=False)
curves = st.lists(
    st.tuples(st.integers(1, 300), bandwidths), min_size=1, max_size=12, unique_by=lambda p: p[0]
).map(lambda points: Curve("MB", 0, 2, "mbm", tuple(Point(*point) for point in sorted(points))))


@given(curves)
def test_a_steady_curve_never_falls_and_keeps_the_mean(curve: Curve) -> None:
    steady = [point.bytes_per_s for point in curve.steady()]
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(steady))
    assert sum(steady) == pytest.approx(sum(point.bytes_per_s for point in curve.points))


@given(curves, st.floats(0, 0.5))
def test_useful_levels_differ_and_lose_nothing_that_matters(curve: Curve, tolerance: float) -> None:
    useful = curve.useful(tolerance)
    assert useful[-1] == curve.top
    for low, high in itertools.pairwise(useful):
        assert low.level < high.level
        assert low.bytes_per_s < high.bytes_per_s * (1 - tolerance)
    for point in curve.steady():
        stands_for = next(each for each in useful if each.level >= point.level)
        assert point.bytes_per_s >= stands_for.bytes_per_s * (1 - tolerance) * (1 - 1e-9)


@given(curves, bandwidths)
def test_the_level_found_is_the_lowest_that_is_enough_and_the_highest_that_is_not_too_much(
    curve: Curve, wanted: float
) -> None:
    useful = curve.useful()
    enough, within = curve.at_least(wanted), curve.at_most(wanted)
    assert (enough is None) == (wanted > curve.top.bytes_per_s)
    if enough is not None:
        assert curve.at(enough.level) >= wanted
        assert all(each.bytes_per_s < wanted for each in useful if each.level < enough.level)
    if within is not None:
        assert within.bytes_per_s <= wanted
        assert all(each.bytes_per_s > wanted for each in useful if each.level > within.level)
    else:
        assert useful[0].bytes_per_s > wanted


@given(curves, st.integers(0, 400))
def test_between_levels_lies_the_line(curve: Curve, level: int) -> None:
    steady = curve.steady()
    assert steady[0].bytes_per_s * (1 - 1e-9) <= curve.at(level) <= curve.top.bytes_per_s * (1 + 1e-9)
    for point in steady:
        assert curve.at(point.level) == point.bytes_per_s


def test_a_curve_is_points_in_order() -> None:
    for points in ((), (Point(20, 1), Point(10, 2)), (Point(10, 1), Point(10, 2)), (Point(10, math.nan),)):
        with pytest.raises(ValueError, match=r"ascend|finite"):
            Curve("MB", 0, 1, "mbm", points)


# --- the file -------------------------------------------------------------------------------------------------


def linear(domain: int = 0, cores: int = 1, top: float = 10 * GB) -> Curve:
    return Curve("MB", domain, cores, "mbm", tuple(Point(p, top * p / 100) for p in range(10, 101, 10)))


def calibration(*found: Curve) -> Calibration:
    return Calibration("a CPU", "2026-01-01T00:00:00+00:00", BandwidthUnit.PERCENT, 10, 10, "max", found)


def test_a_calibration_is_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "mba.json"
    kept = calibration(linear(0, 1), linear(0, 8), linear(16, 1))
    kept.save(path)
    assert Calibration.load(path) == kept
    assert [each.name for each in tmp_path.iterdir()] == ["mba.json"]
    assert kept.curve("MB", 0, 2) == linear(0, 1)
    assert kept.curve("MB", 0, 5) == linear(0, 8)
    assert kept.curve("MB", 3, 5) is None
    newer = kept.with_curves([linear(0, 8, 20 * GB), linear(0, 4)])
    assert [(each.domain, each.cores) for each in newer.curves] == [(0, 1), (0, 4), (0, 8), (16, 1)]
    assert newer.curve("MB", 0, 8) == linear(0, 8, 20 * GB)


def test_a_file_that_is_not_ours_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mba.json"
    with pytest.raises(Gone, match=r"mba\.json"):
        Calibration.load(path)
    good = json.loads(calibration(linear()).to_json())
    for bad in ("", "{", "[]", "{}", json.dumps({**good, "minimum": "10"}), json.dumps({**good, "unit": "hogshead"}),
                json.dumps({**good, "curves": [{**good["curves"][0], "levels": [1]}]})):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(Broken, match=r"mba\.json.*calibrate again"):
            Calibration.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(Broken):
        Calibration.load(path)
    path.write_text(json.dumps({**good, "version": 99}))
    with pytest.raises(Unsupported, match="version 99"):
        Calibration.load(path)
    with pytest.raises(ResctrlError, match="nowhere"):
        calibration().save(tmp_path / "nowhere" / "mba.json")


@given(st.text(max_size=40))
def test_no_text_makes_loading_fail_otherwise(text: str) -> None:
    with suppress(Broken, Unsupported):
        Calibration.from_json(text)


# --- looking up -----------------------------------------------------------------------------------------------

MB = World().open().info.bandwidths["MB"]


def test_with_a_curve_answers_are_measured() -> None:
    flat = Curve(
        "MB", 0, 4, "mbm", (Point(10, 2 * GB), Point(20, 6 * GB), Point(50, 10 * GB), Point(100, 10 * GB))
    )
    look = BandwidthLookup(MB, calibration(flat))
    assert look.calibrated(0, 4)
    assert look.levels(0, 4) == (10, 20, 100)
    assert look.bandwidth(0, 4, 15) == 4 * GB
    half = look.for_share(0, 4, 0.5)
    assert (half.value, half.calibrated, half.bytes_per_s, half.note) == (20, True, 6 * GB, "")
    assert look.for_share(0, 4, 0.5, at_most=True).value == 10
    assert look.for_share(0, 4, 1.0).value == 100
    short = look.for_bandwidth(0, 4, 30 * GB)
    assert (short.value, short.note) == (100, "the domain delivers less even unthrottled")
    long = look.for_bandwidth(0, 4, 1 * GB, at_most=True)
    assert (long.value, long.note) == (10, "even the lowest level delivers more")


def test_without_a_curve_the_nominal_level_is_used_and_said_to_be_uncalibrated() -> None:
    for look in (BandwidthLookup(MB), BandwidthLookup(MB, calibration(linear(7)))):
        level = look.for_share(0, 4, 0.55)
        assert (level.value, level.calibrated) == (60, False)
        assert "not calibrated" in level.note
        assert isinstance(level.bytes_per_s, Unavailable)
        assert look.for_share(0, 4, 0.55, at_most=True).value == 50
        assert look.for_share(0, 4, 0.0).value == 10
        assert look.for_share(0, 4, 0.3).value == 30
        assert isinstance(look.bandwidth(0, 4, 50), Unavailable)
        assert look.for_bandwidth(0, 4, GB).value == 100
        assert look.levels(0, 4) == tuple(range(10, 101, 10))
    with pytest.raises(Invalid, match="a share must be from 0 to 1"):
        BandwidthLookup(MB).for_share(0, 4, 50)


def test_an_open_range_has_no_shares_until_it_is_calibrated() -> None:
    amd = World("amd").open().info.bandwidths["MB"]
    level = BandwidthLookup(amd).for_share(0, 4, 0.5)
    assert (level.value, level.calibrated) == (2048, False)
    assert "needs a calibration" in level.note


def test_curves_of_another_machine_or_other_steps_are_not_believed() -> None:
    look = BandwidthLookup(MB, calibration(linear()), machine="another CPU")
    assert not look.calibrated(0, 1)
    assert "measured on 'a CPU', but this machine is 'another CPU'" in look.for_share(0, 1, 0.5).note
    finer = replace(MB, granularity=1)
    assert "the steps" in BandwidthLookup(finer, calibration(linear())).for_share(0, 1, 0.5).note


# --- the machine ----------------------------------------------------------------------------------------------


def test_streams_run_where_told_and_end(tmp_path: Path) -> None:
    with Streams([0, 0], 1 << 20, 10.0) as streams:
        (one, other) = streams.tids
        before = streams.moved_bytes()
        while streams.moved_bytes() <= before:
            pass
        assert Path(f"/proc/{one}/status").read_text().count("Cpus_allowed_list:\t0\n") == 1
    assert not Path(f"/proc/{one}").exists()
    assert not Path(f"/proc/{other}").exists()
    with pytest.raises(Broken, match="streaming in process"):
        Streams([4095], 1 << 20, 10.0)


def test_cores_of_a_cache_are_found_and_whether_they_idle(tmp_path: Path) -> None:
    fs = sysfs(tmp_path, "cpu 9 9 9 9\ncpu0 10 0 0 100 0\ncpu1 10 0 0 100 0\ncpu2 10 0 0 100 0\nintr 1\n")
    shares = l3_domains(fs)
    assert {number: share.cores for number, share in shares.items()} == {0: ((0, 2),), 16: ((1,),)}
    assert shares[16].cache_bytes == 1 << 20
    assert machine_name(fs) == "A Model @ 2 GHz"

    def later(_: float) -> None:
        (tmp_path / "proc/stat").write_text("cpu0 11 0 0 199 0\ncpu1 10 0 0 150 50\ncpu2 60 0 0 150 0\n")

    assert idle_cores(fs, [(0, 2), (1,), (3,), (0,)], sleep=later) == ((1,), (0,))
    (tmp_path / "proc/stat").unlink()
    with pytest.raises(Unsupported):
        idle_cores(fs, [(0,)], sleep=later)


def test_groups_named_alike_are_not_touched() -> None:
    world = World()
    world.mkdir("rdtcal")
    calibrator(world, Model(world)).run(a_plan(world, domains=[0], core_counts=[1]))
    assert "rdtcal" in world.fs.listdir(ROOT)
    assert GroupRef("rdtcal") in world.open().list_groups()
