"""What perphctl shows while it waits for jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.agent.queue.rows import row_of
from perphd.batch.job import JobState, QueuedJob
from perphd.batch.view import JobForecast, JobRow, Times
from perphd.commands.wait_progress import note_of, waiting
from tests.unit.queue_world import spec

NOW_S = 1e9


def running(ran_s: float) -> JobRow:
    job = QueuedJob(
        7, spec("x", name="pack"), NOW_S - 100.0, JobState.RUNNING, since_s=NOW_S - ran_s, attempt=1
    )
    return row_of(job, True, {}, {}, NOW_S)


def test_a_running_job_shows_how_much_of_its_predicted_run_is_over() -> None:
    row = running(30.0)
    assert note_of(row, NOW_S) == ("job 7 (pack): running for 30 s", None)
    assert row.detail is not None
    ends = Times(NOW_S + 60.0, NOW_S + 90.0, NOW_S + 300.0)
    known = replace(row, detail=replace(row.detail, forecast=JobForecast(ends, ends)))
    assert note_of(known, NOW_S)[1] == pytest.approx(0.25)


def test_of_somebody_else_s_job_only_the_state_is_known() -> None:
    assert note_of(JobRow(3, "theirs", JobState.QUEUED), NOW_S) == ("job 3 (theirs): queued", None)


def test_nothing_is_drawn_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting(2, True) as tell:
        tell(0, running(1.0))
    assert capsys.readouterr() == ("", "")
