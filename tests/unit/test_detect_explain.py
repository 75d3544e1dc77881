"""An explanation also says what was written and whether it helped; JSON has all of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from perphd.admission.perph import PerphMemory
from perphd.agent.records import KEPT_DECISIONS, Records
from perphd.commands.explain import REMEMBERED, batch_parts, explain_parts, summary_parts
from perphd.control.table import plain
from perphd.domain.allocation import IDLE, UNTOUCHED, Settings
from perphd.domain.decision import Action, Cause, Consequences, Evidence, Health, Outcome, Verdict
from perphd.domain.plan import ChangeSet, Stage, Write
from perphd.domain.reading import available
from perphd.domain.status import WorkloadStatus
from perphd.domain.wire import decode, encode
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from tests.unit.admission_world import World
from tests.unit.control_fake import decision


def test_what_followed_is_found_again() -> None:
    records = Records(None, lambda: 0.0)
    first, second = decision(10.0), decision(20.0, Action.HOLD)
    records.decision(first)
    records.change(10.0, ChangeSet(()), "written")
    outcome = Outcome(13.0, "db", 10.0, 0.7, 1.02, True, "score 0.70 -> 1.02: it helped")
    records.outcome(outcome)
    records.outcome(Outcome(14.0, "web", 10.0, 0.7, 0.6, False, "of another LRA"))
    found = records.consequences(first)
    assert (found.result, found.outcome) == ("written", outcome)
    assert records.consequences(second) == Consequences(20.0)
    assert decode(Consequences, encode(found), "aftermath") == found


def test_a_change_is_remembered_however_often_nothing_was_done_since() -> None:
    records = Records(None, lambda: 0.0)
    records.decision(replace(decision(1.0), mode=Mode.ENFORCE))
    for n in range(2000):
        records.decision(replace(decision(10.0 + n, Action.HOLD), reason=f"watching {n}"))
    found = records.decisions("db", None, 1000)
    assert [made.at_s for made in found if made.action is Action.GROW] == [1.0]
    assert len(found) == KEPT_DECISIONS + 1 <= REMEMBERED
    assert records.decisions("db", 5.0, 10) == found[-1:]
    assert "protected it more" in plain(summary_parts(found, 0.0))
    records.forget("db")
    assert records.decisions("db", None, 10) == ()


def test_what_is_only_observed_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Reasons name predicted scores and change at every tick; the log is not to."""
    records = Records(None, lambda: 0.0)
    caplog.set_level(logging.INFO, "perphd")
    for n in range(120):
        grow = replace(decision(float(n)), mode=Mode.OBSERVE, reason=f"score {n}")
        records.decision(grow if n % 5 else replace(grow, action=Action.HOLD))
    assert [record.getMessage().count("would grow") for record in caplog.records] == [1]
    records.decision(replace(decision(120.0, Action.SHRINK), mode=Mode.OBSERVE))
    assert len(caplog.records) == 2
    records.decision(replace(decision(121.0), mode=Mode.ENFORCE, reason="now"))
    records.decision(replace(decision(122.0), mode=Mode.ENFORCE, reason="and now"))
    assert len(caplog.records) == 4, "what is done is always logged"
    assert len(records.decisions("db", None, 200)) > 100, "all of them are kept"


def test_sentences_say_what_was_written_and_whether_it_helped() -> None:
    grown = decision(100.0)
    outcome = Outcome(103.0, "db", 100.0, 0.7, 1.02, True, "score 0.70 -> 1.02: it helped")
    after = Consequences(100.0, ("/cg/pi/cpu.idle: '0' -> '1'",), "written", outcome)
    shown = plain(explain_parts([grown], 0.0, after=[after]))
    assert "one file written" in shown
    assert "it helped; the change was kept" in shown
    assert "cpu.idle" not in shown
    assert "/cg/pi/cpu.idle: '0' -> '1'" in plain(explain_parts([grown], 0.0, verbose=True, after=[after]))


def test_every_cause_has_words() -> None:
    from perphd.commands.explain import _CAUSES

    assert set(_CAUSES) == set(Cause) - {Cause.NONE, Cause.UNKNOWN}


def test_a_lasting_shift_is_told_with_its_threshold() -> None:
    world = World(cores=4, lra_demand=2.0)
    world.step(60)
    memory = world.memory
    assert isinstance(memory, PerphMemory)
    state = memory.lras["db"]
    assert not any(item.signal == "shift of work" for item in world.history[-1].verdict.evidence)
    detector = replace(state.detector, work=replace(state.detector.work, small=20.0))
    world.memory = replace(memory, lras={"db": replace(state, detector=detector)})
    world.step(1)
    told = next(item for item in world.history[-1].verdict.evidence if item.signal == "shift of work")
    assert available(told.observed)
    assert available(told.expected)
    assert told.observed >= told.expected
    assert "1 false alarms a day" in told.text


def test_a_summary_begins_with_the_last_decision_that_changed_something() -> None:
    held = decision(110.0, Action.HOLD)
    decisions = [replace(held, at_s=120.0, reason="just enough"), held, decision(100.0)]
    shown = plain(summary_parts(decisions, 0.0))
    assert shown.index("protected it more") < shown.index("just enough")
    assert shown.count("left everything as it is") == 1
    assert plain(summary_parts(decisions[:2], 0.0)).count("left everything as it is") == 1
    assert summary_parts([], 0.0) == []


def test_batch_is_explained_by_the_decisions_that_changed_it() -> None:
    records = Records(None, lambda: 0.0)
    grown, other = decision(10.0), replace(decision(20.0), reason="another time")
    write = Write("pi", "cpu_weight", "/cg/pi/cpu.idle", "1", "0", Stage.SHRINK)
    for made in (grown, other, decision(30.0, Action.HOLD)):
        records.decision(made)
    records.change(10.0, ChangeSet((write,)), "written")
    records.change(20.0, ChangeSet((replace(write, workload="web"),)), "written")
    assert records.decisions_about_batch("pi", None, 5) == (grown,)
    assert records.decisions_about_batch("pi", 5.0, 5) == ()
    spec = WorkloadSpec("pi", Kind.BATCH, "/pi", min_cores=0.5)
    pi = WorkloadStatus(spec, True, Mode.ENFORCE, None, None, None, None, Settings(cpu_weight=IDLE))
    shown = plain(batch_parts(pi, (grown,), 0.0))
    assert shown.startswith("pi: idle")
    assert "batch on 2 of 4 cores" in shown
    starved = replace(pi, in_force=UNTOUCHED, condition="starved", starved_s=42.0, recent_cores=0.1)
    shown = plain(batch_parts(starved, (), 0.0))
    assert "perphd remembers no decision that changed it" in shown
    assert "It is starved, for 42 s." in shown
    assert "It got 0.10 cores over the last 10 s; min_cores is 0.5." in shown


def test_a_change_of_mode_makes_a_decision_news() -> None:
    records = Records(None, lambda: 0.0)
    records.decision(replace(decision(10.0), mode=Mode.OBSERVE))
    records.decision(replace(decision(11.0), mode=Mode.OBSERVE))
    records.decision(replace(decision(12.0), mode=Mode.ENFORCE))
    assert [d.mode for d in records.decisions("db", None, 5)] == [Mode.ENFORCE, Mode.OBSERVE]


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        (
            Evidence("delay (latency_p95_ms)", 6.32, 9.43, "", "0.67 x the accepted delay"),
            "p95 latency: 6.32 ms, at most 9.43 ms (0.67 x the accepted delay)",
        ),
        (
            Evidence("work (mips)", 812.0, 1206.0, "/s", "33% below the target"),
            "work (MIPS): 812 /s, target 1206 /s (33% below the target)",
        ),
        (
            Evidence("cpu_some_pct", 54.1, 18.2, "%", "36 points above its usual 18 %"),
            "waiting for a CPU (PSI): 54.1 % (36 points above its usual 18 %)",
        ),
        (Evidence("cpu_throttled_pct", 4.0, 0.0, "%", ""), "held back by its own CPU limit: 4 %"),
        (Evidence("extra time", 8.15, 0.0, "threads", ""), "extra time: 8.15 threads, expected 0 threads"),
    ],
)
def test_evidence_reads_as_words_and_units(evidence: Evidence, line: str) -> None:
    verdict = Verdict(Health.DEGRADED, Cause.CPU, 0.0, (evidence,))
    assert line in plain(explain_parts([replace(decision(10.0), verdict=verdict)], 0.0))
