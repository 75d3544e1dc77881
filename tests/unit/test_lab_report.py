"""From runs to rows, goals and pages."""

from __future__ import annotations

import json

import pytest

from tools.lab import report
from tools.lab.analysis import Target, in_force, on_target, recovery, rows, target
from tools.lab.experiment import Timing
from tools.lab.goals import goals
from tools.lab.machine import Machine
from tools.lab.paper import answers
from tools.lab.records import Cores, Note, Point, Run, Window
from tools.lab.stats import Spread

MACHINE = Machine(
    processor="A processor", cpus=2, memory_gib=8.0, kernel="6.1", system="Debian", python="3.11", cgroups="v2",
    software=("MariaDB 10.11",), batch_language="C", virtual=True, load_average=0.1, lab_shares=65536, scale=1,
    commit="abc",
)  # fmt: skip


def make(scheme, repetition=0, cell="closed-pi4", rates=(1000.0,) * 8, p95=2.0, batch=50.0, **more):
    points = tuple(Point(i + 1.0, 1.0, rate, p95, batch) for i, rate in enumerate(rates))
    whole = Window(len(rates), sum(rates) / len(rates), p95 / 2, p95, p95 * 2, batch, 0)
    return Run(
        cell=cell, scheme=scheme, repetition=repetition, whole=whole, settled=whole, timeline=points,
        settings=((-3.0, "batch", {"shares": "1024"}), (1.5, "batch", {"shares": "2"})) if scheme == "perphd" else (),
        notes=(Note(1.2, "decision", "grow: it was too slow"),) if scheme == "perphd" else (),
        cores=Cores(1.0, 0.5, 0.3, 0.05, 0.0), client_stalled=0.02, started="then", **more,
    )  # fmt: skip


def closed():
    runs = []
    for repetition, machine in enumerate(
        (1.0, 0.5, 0.8)
    ):  # the machine's speed drifts from repetition to repetition
        runs += [
            make("alone", repetition, rates=(1000 * machine,) * 8, p95=2.0 / machine, batch=0.0),
            make("native", repetition, rates=(400 * machine,) * 8, p95=10.0 / machine, batch=90 * machine),
            make("sbs-1024", repetition, rates=(600 * machine,) * 8, p95=8.0 / machine, batch=60 * machine),
            make("perphd", repetition, rates=(400 * machine,) * 2 + (900 * machine,) * 6, p95=4.0 / machine,
                 batch=70 * machine),
        ]  # fmt: skip
    return runs


def test_ratios_are_taken_within_a_repetition_so_that_drift_cancels():
    row = next(row for row in rows(closed()) if row.scheme == "perphd")
    assert row.repetitions == 3
    assert row.rate == Spread(620.0, 387.5, 775.0, 3)
    assert row.whole.rate_to_native == Spread(1.9375, 1.9375, 1.9375, 3)
    assert row.whole.p95_to_native == Spread(0.4, 0.4, 0.4, 3)
    assert row.whole.batch_to_native == Spread(7 / 9, 7 / 9, 7 / 9, 3)


def test_rows_come_in_the_order_of_the_schemes_whatever_the_order_of_the_runs():
    assert [row.scheme for row in rows(closed()[::-1])] == ["alone", "native", "sbs-1024", "perphd"]


def test_closed_loop_recovers_at_95_percent_of_v_star():
    runs = closed()
    run = next(run for run in runs if run.scheme == "perphd")
    assert target(run, runs) == Target("rate", 0.95 * 0.9 * 1000)
    assert recovery(run, runs) == 3.0
    assert on_target(run, runs) == 6 / 8


def test_open_loop_is_judged_by_latency():
    alone = make("alone", cell="open-pi4", p95=2.0, batch=0.0)
    native = make("native", cell="open-pi4", p95=3.1)
    good = make("perphd", cell="open-pi4", p95=2.9)
    runs = [alone, native, good]
    assert recovery(good, runs) == 1.0
    assert recovery(native, runs) is None
    assert {goal.text: goal.met for goal in goals(runs)} == {
        "p95 / run-alone's": True,
        "batch work / native's": True,
        "recovery after the antagonist's start, s": True,
    }


def test_a_second_without_any_transaction_misses_an_open_loops_target():
    alone = make("alone", cell="open-pi4")
    stuck = make("perphd", cell="open-pi4")
    points = tuple(Point(p.end_s, 1.0, 0.0, None, 0.0) for p in stuck.timeline)
    run = Run(**{**stuck.__dict__, "timeline": points})
    assert on_target(run, [alone, run]) == 0.0


def test_goals_compare_with_every_reference_that_was_run():
    met = {goal.text: goal.met for goal in goals(closed())}
    assert met == {
        "rate / native's": True,
        "p95 / native's": True,
        "rate / sbs-1024's": True,
        "batch work / sbs-1024's": True,
        "recovery after the antagonist's start, s": True,
    }


def test_recovery_in_some_repetitions_only_misses_the_goal():
    runs = [run for run in closed() if not (run.scheme == "perphd" and run.repetition == 1)]
    runs.append(make("perphd", 1, rates=(100.0,) * 8))
    assert [goal.met for goal in goals(runs)][-1] is False
    assert "in 2 of 3" in report.summary(runs)


def test_what_was_in_force_is_told_by_its_share_of_the_window():
    found = in_force([make("perphd"), make("perphd", 1)])
    assert found == [("batch", "shares 2", 6.5 / 8), ("batch", "shares 1024", 1.5 / 8)]
    assert "- perphd, batch: shares 2: 81 % of the time" in report.summary([make("perphd")])
    assert in_force([make("native")]) == []


def test_missing_references_leave_dashes_not_zeros():
    row = rows([make("perphd")])[0]
    assert row.whole.rate_to_native is None
    assert row.recovery_s is None
    assert "| **perphd** | 1000 | 1.00 | 2.00 | 4.00 | 50.0 | – | – |" in report.summary([make("perphd")])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (Spread(1.234, 1.0, 2.0, 1), "1.23"), (Spread(1.234, 1.0, 2.0, 3), "1.23 (1.00–2.00)")],
)
def test_spreads_as_text(value, expected):
    assert report.show(value) == expected


def test_the_page_tells_machine_command_method_and_what_was_done_when():
    page = report.markdown(closed(), MACHINE, Timing(), "python -m tools.lab --reps 3", "timeline.png")
    for part in (
        "python -m tools.lab --reps 3", "A processor", "commit abc", "![", "(timeline.png)",
        "- +1.2: grow: it was too slow", "- +1.5: batch has shares 2", "repetition 2:", "at most 2.0 % of the time",
        "remote client",
    ):  # fmt: skip
        assert part in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_a_daemon_that_failed_is_told():
    page = report.markdown(
        [make("perphd", daemon_problem="perphd ended with status 1")], MACHINE, Timing(), "x"
    )
    assert "perphd ended with status 1" in page


def test_everything_is_written_and_reads_back(tmp_path):
    pytest.importorskip("matplotlib")
    report.write(tmp_path, closed(), MACHINE, Timing(), "x")
    content = json.loads((tmp_path / "results.json").read_text())
    assert len(content["runs"]) == 12
    assert content["machine"]["commit"] == "abc"
    assert content["runs"][3]["timeline"][2]["tps"] == 900.0
    assert [goal["met"] for goal in content["goals"]].count(True) == 5
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.md").exists()


def test_the_paper_s_figures_stand_beside_what_was_measured():
    runs = [
        make(scheme, repetition, cell="slap-pi4", rates=(rate,) * 8, batch=batch)
        for repetition in range(3)
        for scheme, rate, batch in (("alone", 1000.0, 0.0), ("native", 400.0, 90.0), ("sbs-1024", 500.0, 80.0),
                                    ("perphd", 800.0 + repetition, 45.0))
    ]  # fmt: skip
    told = {answer.claim.reference: answer for answer in answers(runs)}
    assert told["native"].ours is not None
    assert told["native"].ours.median == pytest.approx(400 / 801)
    assert {name: answer.met for name, answer in told.items()} == {"native": False, "sbs-1024": False, "alone": False}
    assert told["native"].batch == Spread(0.5, 0.5, 0.5, 3)
    row = "| mysqlslap: time of all queries | native | at most 0.494 | 0.50 (0.50–0.50) | 0.50 (0.50–0.50) | missed |"
    assert row in report.summary(runs)
    assert "paper" not in report.summary([make("native")])
