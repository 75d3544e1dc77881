"""perphctl report: the store's rows, the figures, and the refusals."""

from __future__ import annotations

import datetime
import io
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from perphd.commands.cli import cli
from perphd.commands.histories import histories
from perphd.commands.render_report import facts, html, report_parts, size_tables, tables, verdict
from perphd.commands.reservations import ReservedPlace
from perphd.control.table import Table, plain, print_parts
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.decision import Action, Candidate, Cause, Decision, Health, Outcome, Prediction, Verdict
from perphd.domain.reading import Unavailable, available
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Mode
from perphd.monitor.query import QueryError
from perphd.monitor.report_rows import read_history
from perphd.monitor.store import Store
from perphd.report.calibration import RECOVERED, predicted_batch_kept, predicted_on_target
from perphd.report.summary import summarise
from perphd.sizing.recommendation import Reservation
from perphd.sizing.rows import size_rows
from perphd.sizing.shaper import Resource
from tests.unit.control_fake import serving
from tests.unit.sizing_store import GIB, constant, made, usual
from tools.bench.weeks.fit import Pair, Week, calibrate, coverage

EPOCH_S = 1_700_000_000.0
FREE, TIGHT = Allocation(CpuGrant(8, 8)), Allocation(CpuGrant(8, 3))


def decision(
    at_s: float, mode: Mode, health: Health = Health.HEALTHY, action: Action = Action.HOLD
) -> Decision:
    cause = Cause.CPU if health is Health.DEGRADED else Cause.NONE
    candidates = (Candidate(TIGHT, Prediction(1.1, 0.9, 1.35, 5.0), 2.5, "chosen"),)
    return Decision(
        at_s, "db", Verdict(health, cause, at_s, ()), action, 100.0, 10.0, FREE,
        TIGHT if action is Action.GROW else FREE,
        candidates if action is Action.GROW else (), "because", "perph", mode,
    )  # fmt: skip


def store_of(
    path: Path, mode: Mode, delay: Callable[[int], float], seconds: int = 600, unknown_s: int = 0
) -> Path:
    """A store in which db's p95 is ``delay(second)``, batch runs all the time, and db is judged once in ten seconds."""
    store = Store(path, 1e9, 1 << 30)
    store.start()
    for second in range(1, seconds + 1):
        wall_s = EPOCH_S + second
        missed = delay(second) > 10.0
        store.add_samples(
            wall_s,
            (
                Sample(
                    "db",
                    second,
                    1.0,
                    work_rate_per_s=120.0,
                    latency_p95_ms=delay(second),
                    cpu_usage_cores=2.0,
                ),
                Sample("pi", second, 1.0, cpu_usage_cores=4.0),
            ),
        )
        if second % 10 == 1:
            health = Health.UNKNOWN if second < unknown_s else Health.DEGRADED if missed else Health.HEALTHY
            action = Action.GROW if missed and health is Health.DEGRADED else Action.HOLD
            store.add_decision(wall_s, decision(second, mode, health, action))
    store.add_outcome(EPOCH_S + 30, Outcome(30.0, "db", 20.0, 0.7, 1.1, True, "it helped"))
    store.add_outcome(EPOCH_S + 60, Outcome(60.0, "db", 50.0, 1.1, 0.9, False, "below target"))
    store.close()
    return path


def test_in_observe_it_says_what_was_and_what_would_have_been(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 20.0 if 200 < s <= 350 else 5.0)
    report = summarise(read_history(store, 1e6))
    (db,) = report.lras
    assert db.observed is not None
    assert db.observed.pct == pytest.approx(75.0, abs=2.0)
    assert db.enforced is None
    assert db.predicted is not None
    assert db.predicted.low_pct <= db.predicted.pct <= db.predicted.high_pct
    assert db.predicted.pct > db.observed.pct
    assert db.acted == ((Mode.OBSERVE, Action.GROW, Cause.CPU, 1),), "fifteen rounds wanted one change"
    ((cause, hours),) = db.degraded
    assert cause is Cause.CPU
    assert hours == pytest.approx(150 / 3600, abs=0.01)
    assert report.batch.observed_cores == pytest.approx(4.0, abs=0.2)
    # Batch runs throughout: from the first missed window on it would have given way.
    assert report.batch.touched_pct == pytest.approx(100 * 400 / 600, abs=4.0)
    assert report.batch.predicted_pct == predicted_batch_kept(report.batch.touched_pct)


def test_predictions_from_little_time_say_so(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 5.0)
    report = summarise(read_history(store, 1e6))
    assert any("This is a short time: the predictions rest on" in line for line in facts(report))
    (db,) = report.lras
    assert db.observed is not None
    whole = replace(report, lras=(replace(db, observed=replace(db.observed, windows=24 * 3600)),))
    assert not any("This is a short time" in line for line in facts(whole))


def test_the_first_minutes_promise_nothing_and_say_when_more_is_known(tmp_path: Path) -> None:
    missed = store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 20.0 if s <= 120 else 5.0, seconds=239)
    report = summarise(read_history(missed, 1e6))
    (db,) = report.lras
    assert db.observed is not None
    assert (db.predicted, report.batch.predicted_pct) == (None, None)
    assert db.too_short_s == 240.0
    assert verdict(report) == (
        "db was on target for 50 % of the 4 min in observe that could be judged; what perphd would have changed is not "
        "known yet."
    )
    first = datetime.datetime.fromtimestamp(EPOCH_S + 239 + 360).astimezone()
    assert facts(report)[1] == (
        f"Predictions take 10 min that could be judged (so far: db 4 min). The first follows at {first:%Y-%m-%d %H:%M} "
        "at the earliest, if the daemon runs until then and knows the target."
    )
    shown = plain(report_parts(report))
    assert "WITH PERPHD" not in shown
    assert "bands that held" not in shown
    assert "not known yet" in html(report)


def test_while_the_targets_are_unknown_batch_is_promised_nothing(tmp_path: Path) -> None:
    learning = store_of(tmp_path / "l.db", Mode.OBSERVE, lambda s: 5.0, seconds=1200, unknown_s=10_000)
    report = summarise(read_history(learning, 1e6))
    assert report.batch.predicted_pct is None
    assert report.lras[0].too_short_s == 0.0
    assert "so far: db 0 s" in facts(report)[1]


def test_the_first_minutes_in_enforce_are_measured(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.ENFORCE, lambda s: 5.0, seconds=120)
    report = summarise(read_history(store, 1e6))
    assert report.lras[0].too_short_s is None
    assert verdict(report) == "db was on target for 100 % of the time with perphd enforcing."


def test_in_enforce_it_says_what_happened_and_predicts_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.ENFORCE, lambda s: 20.0 if s <= 60 else 5.0)
    report = summarise(read_history(store, 1e6))
    (db,) = report.lras
    assert db.observed is None
    assert db.predicted is None
    assert db.enforced is not None
    assert db.enforced.pct == pytest.approx(90.0, abs=2.0)
    assert (db.kept, db.rolled_back) == (1, 1)
    shown = plain(tables(report))
    assert "Changes at their review (other rollbacks are only listed above)" in shown
    assert re.search(r"LRA +STOOD +ROLLED BACK\n *db +1 +1\n", shown)
    assert not report.is_predicted
    assert report.batch.predicted_pct is None
    assert (
        verdict(report) == f"db was on target for {db.enforced.pct:.0f} % of the time with perphd enforcing."
    )


def test_time_in_which_nothing_was_known_does_not_count(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 5.0, unknown_s=300)
    (db,) = summarise(read_history(store, 1e6)).lras
    assert db.observed is not None
    assert db.observed.windows == pytest.approx(30, abs=1)
    learning = store_of(tmp_path / "l.db", Mode.OBSERVE, lambda s: 5.0, unknown_s=10_000)
    assert verdict(summarise(read_history(learning, 1e6))).startswith("Nothing can be said yet")


def test_only_the_time_that_was_asked_for_counts(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 20.0 if s <= 300 else 5.0)
    (db,) = summarise(read_history(store, 200.0)).lras
    assert db.observed is not None
    assert db.observed.pct == 100.0


def test_the_model_s_chance_and_price_are_read_from_the_record(tmp_path: Path) -> None:
    history = read_history(store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 20.0), 1e6)
    grown = [d for d in history.decisions["db"] if d.action is Action.GROW]
    assert grown
    assert grown[0].batch_cores_lost == 2.5
    assert available(grown[0].chance)
    assert 0.5 < grown[0].chance < 1.0


def test_readings_that_repeat_the_last_one_do_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db", 1e9, 1 << 30)
    store.start()
    for second in range(1, 21):
        quality = (Quality.BETWEEN,) if second <= 10 else ()
        sample = Sample("db", second, 1.0, latency_p95_ms=5.0, quality=quality)
        store.add_samples(EPOCH_S + second, (sample,))
    store.close()
    (window, *_) = [w for w in read_history(tmp_path / "s.db", 1e6).windows["db"] if available(w.delay)]
    assert window.at_s > EPOCH_S + 10


def test_a_missing_reading_is_not_a_zero(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db", 1e9, 1 << 30)
    store.start()
    store.add_samples(EPOCH_S, (Sample("db", 1.0, 1.0, latency_p95_ms=Unavailable("no answer")),))
    store.close()
    (window,) = read_history(tmp_path / "s.db", 1e6).windows["db"]
    assert not available(window.delay)
    assert not available(window.cores)


def test_what_is_missed_without_batch_too_is_not_promised(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db", 1e9, 1 << 30)
    store.start()
    for second in range(
        1, 1201
    ):  # at high load it misses its target, batch or not; batch runs in the second half
        wall_s, busy, batch = EPOCH_S + second, second % 600 > 300, 4.0 if second > 600 else 0.0
        delay = 20.0 if busy else 5.0
        db = Sample("db", second, 1.0, work_rate_per_s=200.0 if busy else 100.0, latency_p95_ms=delay)
        store.add_samples(wall_s, (db, Sample("pi", second, 1.0, cpu_usage_cores=batch)))
        if second % 10 == 1:
            store.add_decision(wall_s, decision(second, Mode.OBSERVE))
    store.close()
    (db_summary,) = summarise(read_history(tmp_path / "s.db", 1e6)).lras
    assert db_summary.observed is not None
    assert db_summary.observed.pct == pytest.approx(50.0, abs=2.0)
    assert db_summary.inherent_pct == pytest.approx(50.0, abs=3.0)
    assert db_summary.predicted is not None
    assert db_summary.predicted.pct <= db_summary.observed.pct + 3.0


@given(st.floats(0.0, 100.0), st.floats(0.0, 1.0))
def test_bands_lie_within_what_a_share_can_be(pct: float, share: float) -> None:
    assert 0.0 < RECOVERED < 1.0
    for band in (predicted_on_target(pct, share * (100.0 - pct)), predicted_batch_kept(pct)):
        assert 0.0 <= band.low_pct <= band.pct <= band.high_pct <= 100.0


# -- perphctl -----------------------------------------------------------------------------------------------


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["report", *words])


def test_text_json_and_html(tmp_path: Path) -> None:
    store = str(store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 20.0 if s <= 150 else 5.0))
    shown = run("--store", store)
    assert shown.exit_code == 0, shown.output
    assert "Time on target" in shown.stdout
    assert re.search(r"db +would +grow +cpu +1\n", shown.stdout)
    data = json.loads(run("--store", store, "--json").stdout)
    assert data["verdict"] in shown.stdout
    assert data["report"]["lras"][0]["observed"]["pct"] == pytest.approx(75.0, abs=2.0)
    page = tmp_path / "r.html"
    assert run("--store", store, "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)


def test_it_ends_with_what_workloads_reserve_use_and_should_reserve(tmp_path: Path) -> None:
    made(tmp_path / "s.db", 200, {"db": usual(constant(1.0), constant(2.0 * GIB))})
    held = {Resource.CPU: Reservation(4.0, "cpu.max"), Resource.MEMORY: Reservation(8.0 * GIB, "memory.max")}
    place = ReservedPlace(str(tmp_path / "s.db"), {}, {}, {"db": held})
    cpu, memory = rows = size_rows(histories(place, 86_400.0))
    assert (cpu.resource, memory.resource) == ("cpu", "memory")
    assert available(cpu.recommended)
    assert 1.0 < cpu.recommended < 1.2
    shown = plain(size_tables(rows))
    assert re.search(r"db +memory +8.0GiB +2.0GiB +2.0GiB +2.1GiB +5.\dGiB\n", shown), shown
    assert "Confidence low: less than a day of samples (db: cpu and memory)." in shown
    assert re.search(
        r"would reduce the present reservations by 2.9\dcores of cpu and 5.9GiB of memory", shown
    ), shown
    report = summarise(read_history(store_of(tmp_path / "r.db", Mode.OBSERVE, lambda s: 5.0), 1e6))
    page = html(report, rows)
    assert "<h2>Sizes</h2>" in page
    assert "5.9GiB of memory" in page
    assert "<h2>Sizes</h2>" not in html(report)


def test_no_heading_is_broken_on_80_columns(tmp_path: Path) -> None:
    made(tmp_path / "s.db", 200, {"warehouse": usual(constant(1.0), constant(2.0 * GIB))})
    held = {Resource.CPU: Reservation(4.0, "cpu.max"), Resource.MEMORY: Reservation(8.0 * GIB, "memory.max")}
    place = ReservedPlace(str(tmp_path / "s.db"), {}, {}, {"warehouse": held})
    report = summarise(read_history(store_of(tmp_path / "r.db", Mode.OBSERVE, lambda s: 5.0), 1e6))
    parts = report_parts(report, size_rows(histories(place, 86_400.0)))
    file = io.StringIO()
    print_parts(parts, Console(file=file, width=80, force_terminal=False))
    shown = file.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    for part in parts:
        if isinstance(part, Table):
            assert re.search(r" +".join(filter(None, map(re.escape, part.columns))), shown), (part, shown)


def test_html_has_reviews_also_where_no_decision_acted(tmp_path: Path) -> None:
    """As in a window that begins between a change and its review."""
    report = summarise(read_history(store_of(tmp_path / "s.db", Mode.ENFORCE, lambda s: 5.0), 1e6))
    lras = tuple(replace(lra, acted=(), kept=1, rolled_back=2) for lra in report.lras)
    page = html(replace(report, lras=lras))
    assert "Changes at their review" in page
    assert "Batch, all together" in page


def test_html_escapes_names(tmp_path: Path) -> None:
    history = read_history(store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 5.0), 1e6)
    windows = dict(history.windows)
    windows["<script>x"] = windows.pop("pi")
    renamed = type(history)(history.since_s, history.until_s, windows, history.decisions, history.outcomes)
    assert "<script" not in html(summarise(renamed))


def test_refusals(tmp_path: Path) -> None:
    missing = run("--store", str(tmp_path / "none.db"))
    assert missing.exit_code == 1
    assert "there is no store" in missing.output
    other = tmp_path / "other.db"
    other.write_text("no database")
    assert run("--store", str(other)).exit_code == 1
    store = str(store_of(tmp_path / "s.db", Mode.OBSERVE, lambda s: 5.0, seconds=60))
    assert run("--store", store, "--since", "5s").exit_code == 2
    assert run("--store", store, "--since", "yesterday").exit_code == 2
    unwritable = run("--store", store, "--html", str(tmp_path / "no" / "r.html"))
    assert unwritable.exit_code == 1
    assert "cannot be written" in unwritable.output


def test_a_store_without_samples_or_without_decisions_is_refused(tmp_path: Path) -> None:
    empty = Store(tmp_path / "e.db", 1e9, 1 << 30)
    empty.start()
    empty.add_event(EPOCH_S, "mode", "x")
    empty.close()
    with pytest.raises(QueryError, match="holds no samples yet"):
        read_history(tmp_path / "e.db", 1e6)
    batch = Store(tmp_path / "b.db", 1e9, 1 << 30)
    batch.start()
    batch.add_samples(EPOCH_S, (Sample("pi", 1.0, 1.0, cpu_usage_cores=1.0),))
    batch.close()
    found = run("--store", str(tmp_path / "b.db"))
    assert found.exit_code == 1
    assert "no decision about an LRA" in found.output


# -- calibration --------------------------------------------------------------------------------------------


def test_a_calibration_finds_the_lines_and_its_bands_hold_for_other_weeks() -> None:
    rng = random.Random(5)

    def made(seed: int) -> Week:
        observed = rng.uniform(30.0, 100.0)
        touched = rng.uniform(0.0, 100.0)
        enforced = 100.0 - 0.1 * (100.0 - observed) - 2.0 + rng.gauss(0.0, 2.0)
        kept = 95.0 - 0.5 * touched + rng.gauss(0.0, 5.0)
        return Week(seed, (Pair(observed, enforced),), Pair(touched, kept))

    weeks = [made(seed) for seed in range(40)]
    found = calibrate(weeks)
    assert found.recovered == pytest.approx(0.9, abs=0.05)
    assert found.given == pytest.approx(0.5, abs=0.1)
    held = coverage(weeks)
    assert sum(held) >= 35
    assert sum(found.holds(made(seed)) for seed in range(200)) >= 180


def test_status_says_in_observe_what_it_would_have_done(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        shown = CliRunner().invoke(cli, ["--socket", served.socket, "status"])
        assert "enforce would" not in shown.stdout, "it enforces"
        served.agent.mode = Mode.OBSERVE
        shown = CliRunner().invoke(cli, ["--socket", served.socket, "status"])
        assert "db: enforce would set:" in " ".join(shown.stdout.split())
