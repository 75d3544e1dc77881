"""perphctl shaper and memfit, and what the control API says of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perphd.commands.cli import cli
from perphd.domain.reading import Unavailable
from perphd.sizing.shaper_view import ShaperView
from tests.unit.control_fake import Served, serving

Run = Callable[..., Result]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def run(served: Served) -> Run:
    return lambda *words: CliRunner().invoke(cli, ["--socket", served.socket, *words])


def test_shaper_shows_targets_and_what_is_free(run: Run) -> None:
    shown = run("shaper").stdout
    assert "free to lend 6.0GiB" in shown
    assert "elastic" in shown
    assert "2.0GiB" in shown
    assert "pi: 4096 MiB -> 2048 MiB" in shown


def test_a_shaper_that_is_off_says_how_to_begin(run: Run, served: Served) -> None:
    nothing = Unavailable("off")
    served.agent.shaper = lambda: ShaperView("off", 60.0, nothing, nothing)  # type: ignore[method-assign]
    assert 'shaper = "observe"' in run("shaper").stdout


def test_a_search_from_its_start_to_its_end(run: Run) -> None:
    assert "has begun" in run("memfit", "start", "pi", "--samples", "30", "--delta", "0.07").stdout
    every = run("memfit", "status").stdout
    assert "pi: good; speed by mips; 12 of 60 samples of this epoch" in every
    assert max(map(len, every.splitlines())) <= 80
    one = run("memfit", "status", "pi").stdout
    assert "cache" in every
    assert "cache" not in one
    assert "2.0 GiB" in run("memfit", "apply", "pi").stdout
    assert "memory.high is restored" in run("memfit", "stop", "pi").stdout


def test_refusals_say_what_to_do(run: Run) -> None:
    twice = run("memfit", "start", "cache")
    assert twice.exit_code == 1
    assert "under way" in twice.stderr
    assert "memfit stop" in twice.stderr
    assert run("memfit", "apply", "db").exit_code == 1
    assert "no workload" in run("memfit", "start", "nobody").stderr
    none = run("memfit", "status", "db")
    assert none.exit_code == 5
    assert "no search was started for db (allowed: cache)" in none.stderr


@pytest.mark.parametrize(
    ("applied", "says"),
    [
        (False, "perphctl memfit apply pi keeps the recommended limit"),
        (True, "until perphctl memfit stop pi"),
    ],
)
def test_a_search_that_has_ended_says_what_comes_next(
    run: Run, served: Served, applied: bool, says: str
) -> None:
    run("memfit", "start", "pi")
    found = [
        replace(each, phase="converged", applied=applied, recommended_bytes=2.1 * 2**30)
        for each in served.agent.memory_fits()
        if each.workload == "pi"
    ]
    served.agent.memory_fits = lambda: tuple(found)  # type: ignore[method-assign]
    assert says in " ".join(run("memfit", "status").stdout.split())


@pytest.mark.parametrize(("outside", "expected"), [("keep", "3.710"), ("drop", "2.910")])
def test_the_published_example_off_line(tmp_path: Path, outside: str, expected: str) -> None:
    file = tmp_path / "footprint.csv"
    file.write_text("value,samples\n2,2\n4,5\n6,2\n8,1\n")
    words = ["--footprint", str(file), "--task-mean", "0.9", "--task-deviation", "0.2", "--tasks", "5"]
    done = CliRunner().invoke(cli, ["memfit", "estimate", *words, "--outside", outside])
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("text", ["", "value,samples\n", "2,2\nx,y\n", "2,2\n3,-1\n", "2,2\n1,2,3\n"])
def test_a_footprint_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "footprint.csv"
    file.write_text(text)
    words = ["--footprint", str(file), "--task-mean", "1", "--task-deviation", "1", "--tasks", "1"]
    done = CliRunner().invoke(cli, ["memfit", "estimate", *words])
    assert done.exit_code == 1
    assert "allowed" in done.stderr
