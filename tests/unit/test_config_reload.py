"""What a running daemon takes over from files that are read again, and what it names as waiting for a restart."""

from __future__ import annotations

from dataclasses import replace

from perphd.config.file import parse, reloaded
from perphd.domain.workload import Mode

BEFORE = parse('[daemon]\non_stop = "restore"\n', "before")


def test_workloads_the_mode_and_what_happens_at_stop_are_taken_over() -> None:
    text = '[daemon]\nmode = "enforce"\non_stop = "keep"\n[[lra]]\nname = "db"\ncgroup = "/db"\n'
    config, waiting = reloaded(BEFORE, parse(text, "after"))
    assert config.daemon.mode is Mode.ENFORCE
    assert config.daemon.on_stop == "keep"
    assert [spec.name for spec in config.workloads] == ["db"]
    assert config.sources == ("after",)
    assert waiting == ()


def test_everything_else_stays_as_it_runs_and_is_named() -> None:
    text = '[daemon]\nperiod_s = 5\nstate_dir = "/elsewhere"\n[tuning.isolation]\nunits = "leave"\n'
    text += "[tuning.policy]\nsettle_s = 9\n"
    config, waiting = reloaded(BEFORE, parse(text, "after"))
    assert set(waiting) == {
        "daemon.period_s",
        "daemon.state_dir",
        "tuning.isolation.units",
        "tuning.policy.settle_s",
    }
    assert replace(config, sources=BEFORE.sources, warnings=BEFORE.warnings) == BEFORE


def test_the_same_file_changes_nothing() -> None:
    assert reloaded(BEFORE, BEFORE) == (BEFORE, ())
