"""Counters that others use as well, on a real PMU: MIPS is true or flagged, whatever the kernel's times say."""

from __future__ import annotations

import pytest

from tests.pmu.conftest import Play
from tests.pmu.readings import Row, check_mean, check_true, known, of
from tools.pmu.machine import PmuMachine

SETTLED_SAMPLES = 5
"""After a start, this many samples may pass until there is a figure."""


def test_written_late(unseen: tuple[str, list[Row]]) -> None:
    """Started before cgroup.subtree_control was ever written, perphd counts soon after it is."""
    doctor, rows = unseen
    hardware = next(line for line in doctor.splitlines() if line.startswith("perf.hardware"))
    assert hardware.startswith("perf.hardware: no"), "a child's answer, not the root's"
    assert "subtree_control" in hardware
    before = of(rows, "unseen")
    assert before
    assert all("subtree_control" in row["mips"] for row in before)
    assert len(known(of(rows, "seen")[SETTLED_SAMPLES:])) == len(of(rows, "seen")) - SETTLED_SAMPLES
    check_true(rows)


def test_doctor_names_what_is_not_counted(machine: PmuMachine, unseen: object) -> None:
    machine.run("mkdir /sys/fs/cgroup/late")
    try:
        doctor = machine.run("python3 -m tests.pmu.doctor")
    finally:
        machine.run("rmdir /sys/fs/cgroup/late")
    hardware = next(line for line in doctor.splitlines() if line.startswith("perf.hardware"))
    assert hardware.startswith("perf.hardware: yes: instructions, cycles (asked in /sys/fs/cgroup/late)")
    assert "not llc-misses: the PMU armv8_pmuv3 does not advertise ll_cache_miss_rd" in hardware


def test_nobody_else_counts(play: Play) -> None:
    rows = play("plain")
    check_true(rows)
    assert len(known(rows)) == len(rows)
    busy = of(rows, "plain", "busy")
    assert [row["cpi"] for row in busy] == pytest.approx([4.0] * len(busy), rel=0.01)
    assert all("does not advertise ll_cache_miss_rd" in row["llc_mpki"] for row in rows)
    assert all(
        row["mips"] == 0.0 and "nothing to divide by" in row["cpi"] for row in of(rows, "plain", "asleep")
    )


def test_six_to_twelve_foreign_events(play: Play) -> None:
    rows = play("foreign_events")
    check_true(rows)
    for count in range(6, 10):  # from ten on the counters run for about half of the time
        assert known(of(rows, f"foreign {count}")), "not flagged throughout"


def test_a_second_group_on_the_same_cgroup(play: Play) -> None:
    rows = play("group_beside")
    check_true(rows)
    assert known(of(rows, "own group and 6"))


def test_a_gap_between_two_lives(play: Play) -> None:
    rows = play("restart_gap")
    check_true(rows)
    assert len(known(rows)) == len(rows), "no flag that stays, and none when the workload comes back"


def test_counters_pinned_on_one_cpu(play: Play) -> None:
    rows = play("pinned_on_one_cpu")
    check_true(rows)
    assert all(row["quality"] for row in of(rows, "pinned")[1:])
    assert len(known(of(rows, "freed")[1:])) == len(of(rows, "freed")) - 1


def test_all_counters_pinned(play: Play) -> None:
    rows = play("all_pinned")
    check_true(rows)
    starved = of(rows, "pinned")[1:]
    assert all("did not run" in row["mips"] and row["quality"] for row in starved)
    assert len(known(of(rows, "freed")[1:])) == len(of(rows, "freed")) - 1


def test_a_cpu_goes_and_comes_back(play: Play) -> None:
    rows = play("hotplug")
    check_true(rows)
    for workload in ("lra", "batch"):
        online = of(rows, "online", workload)
        assert online[0]["quality"], "what ran on the CPU before it was noticed was not counted"
        assert len(known(online[1:])) == len(online) - 1, "counted from the next sample on"


def test_a_pmu_with_fewer_counters_than_events(play: Play) -> None:
    rows = play("small_pmu")
    check_true(rows)
    small = of(rows, "two counters")
    assert len(known(small)) == len(small)
    assert all(isinstance(row["llc_mpki"], float) for row in of(rows, "six counters"))
    assert any("too few counters" in row["backend_stall_ratio"] for row in small)


def test_a_restarted_daemon_knows_its_lra(play: Play) -> None:
    rows = play("daemon_restart")
    for life in ("first", "second"):
        assert len(of(rows, life)) >= 20
        check_mean(of(rows, life))
    second = of(rows, "second")
    assert not any("multiplexed" in row["quality"] for row in second)
    unknown = [n for n, row in enumerate(second) if row["health"] in ("unknown", "none")]
    assert len(unknown) <= SETTLED_SAMPLES, [row["health"] for row in second]
    assert second[-1]["health"] == "healthy"
