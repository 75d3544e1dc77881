"""What the queue learned outlives the daemon, and a damaged record costs no more than learning again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.queue.calibration import FILE, KeptCalibration
from perphd.agent.queue.planning import PlannedUse, QueuePlanner
from perphd.batch.calibration import UsageCalibration
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.look import CPU, EVERY, MEMORY
from perphd.config.tables import QueueConfig
from tests.unit.queue_world import GIB, spec

LEARNED = dict.fromkeys(EVERY, UsageCalibration()) | {
    CPU: UsageCalibration(10.0, 12.0, 3.0, 30.0, (0.1, 0.7))
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    kept = KeptCalibration(tmp_path)
    assert set(kept.read().values()) == {UsageCalibration()}
    kept.write(LEARNED)
    again = KeptCalibration(tmp_path)
    assert again.read() == LEARNED
    assert again.problem == ""


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    kept = KeptCalibration(tmp_path)
    kept.write(LEARNED)
    (tmp_path / FILE).unlink()
    kept.write(dict(LEARNED))
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{",
        '{"cpu": {"kept": 1, "jobs": 2, "products": 0, "pairs": 1}}',
        '{"cpu": {"kept": 3, "jobs": 2, "products": 0, "pairs": 1, "levels": []}}',
        '{"cpu": {"kept": 1, "jobs": 2, "products": 0, "pairs": 0, "levels": []}}',
        '{"cpu": {"kept": 1, "jobs": 2, "products": 0, "pairs": 1, "levels": [2.0]}}',
        '{"cpu": {"kept": 1, "jobs": 2, "products": 0, "pairs": 1, "levels": "many"}}',
        '{"cpu": {"kept": NaN, "jobs": 2, "products": 0, "pairs": 1, "levels": []}}',
    ],
)
def test_a_damaged_record_is_said_and_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    kept = KeptCalibration(tmp_path)
    assert set(kept.read().values()) == {UsageCalibration()}
    assert "learned again" in kept.problem
    kept.write(LEARNED)
    assert kept.problem == ""
    assert KeptCalibration(tmp_path).read() == LEARNED


def test_a_record_that_cannot_be_written_is_a_problem_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("no folder")
    kept = KeptCalibration(tmp_path / "queue")
    kept.write(LEARNED)
    assert "cannot be stored" in kept.problem


def test_a_planner_goes_on_with_what_an_earlier_one_learned(tmp_path: Path) -> None:
    """A job grows after its first minute: the weight of what is observed of others falls, and stays so."""
    planner = QueuePlanner(QueueConfig(), tmp_path, tmp_path)
    job = QueuedJob(1, spec(), 1000.0, JobState.RUNNING, since_s=1000.0, attempt=1, confirmed=True)
    for minute, cpus in enumerate((1.0, 1.0, 4.0)):
        planner.take(
            [PlannedUse(60.0, {CPU: 0.5, MEMORY: GIB}, {1: {CPU: cpus, MEMORY: GIB}})],
            {1: job},
            (8.0, 16.0 * GIB),
        )
        assert minute < 3
    planner.ended(replace(job, state=JobState.DONE, ran_s=180.0), 1180.0)
    learned = KeptCalibration(tmp_path).read()
    assert learned[CPU].observed_weight < UsageCalibration().observed_weight < learned[MEMORY].observed_weight
    assert QueuePlanner(QueueConfig(), tmp_path, tmp_path)._observed.calibration == learned
