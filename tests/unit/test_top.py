"""perphctl top: strips and graphs, and the screen itself against a served daemon, driven by keys."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Static

from perphd.commands.cli import cli
from perphd.commands.top.app import Top
from perphd.commands.top.drawing import BARS, core_strip, graph, resampled, spark, ways_strip
from perphd.commands.top.rows import LEAST_HISTORY, batch_columns, lra_columns, ordered
from perphd.commands.top.screens import QuestionScreen, Reading
from perphd.commands.top.source import Source
from perphd.commands.top.widgets import Lines, Rows
from perphd.commands.view import View, view_of
from perphd.config.file import Config
from perphd.control.client import Client
from perphd.domain.allocation import Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.status import Change
from perphd.domain.topology import Core, Topology
from perphd.domain.workload import Mode
from tests.unit.control_fake import READER, TOPOLOGY, FakeAgent, Served, decision, serving
from tests.unit.test_past import NOW, filled
from tests.unit.test_view import status

SIZES = [(80, 24), (160, 45)]


# --- strips, graphs, rows --------------------------------------------------------------------------------------


def text_of(line: Any) -> str:
    return "".join(piece for piece, _ in line)


def confined() -> View:
    return view_of(status(pi=Settings(cpus=CpuSet.parse("3,7"))), TOPOLOGY, 0.0)


def test_cores_with_their_threads_together() -> None:
    (line,) = core_strip(confined(), 80, 1)
    assert text_of(line) == "## ## ## ++   # LRAs 0-2,4-6  + shared 3,7"


def many_cores(count: int) -> Topology:
    cores = tuple(Core(n * 2 // count, n, CpuSet.of([n, n + count])) for n in range(count))
    return replace(TOPOLOGY, cores=cores, online=CpuSet.of(range(2 * count)), l3_domains=())


@pytest.mark.parametrize(("width", "most"), [(73, 1), (73, 3), (153, 3), (20, 1)])
@pytest.mark.parametrize("count", [4, 24, 64, 128])
def test_cores_fit_any_terminal(count: int, width: int, most: int) -> None:
    view = view_of(status(pi=Settings(cpus=CpuSet.of([count - 1, 2 * count - 1]))), many_cores(count), 0.0)
    lines = core_strip(view, width, most)
    assert 1 <= len(lines) <= most
    assert all(len(text_of(line)) <= width for line in lines)
    assert "LRAs" in text_of(lines[-1])


def test_ways_of_a_cache() -> None:
    found = replace(status(pi=Settings(llc_masks=((0, 0b0011),))), llc_ways=6, llc_shareable=0b100000)
    line = ways_strip(view_of(found, TOPOLOGY, 0.0), 73)
    assert text_of(line) == "L3 0 ++####  underlined: used by devices, too"
    assert [style for piece, style in line if "underline" in style]


def test_bars_show_on_which_side_of_the_target_a_score_is() -> None:
    line = spark((None, 0.5, 0.93, 0.999, 1.0, 1.07, 1.4))
    assert text_of(line) == " ▁▃▄▅▅█"
    assert [style for _, style in line] == ["", "red", "green"]
    near = text_of(spark((0.93, 0.97, 1.03, 1.1)))
    assert near[0] < near[1] < near[2] < near[3]


def test_graph_stands_on_the_target() -> None:
    above, below = graph((4 / 3, 0.75, 1.0, None), 4)[:2], graph((4 / 3, 0.75, 1.0, None), 4)[2:]
    assert [text_of(row)[0] for row in above] == ["█", "█"]
    assert [text_of(row)[1] for row in below] == ["█", "█"]
    assert text_of(above[1])[2:] == "▁_"
    assert text_of(below[0])[2:] == "  "
    assert [text_of(graph((score,), 2)[1]) for score in (0.97, 0.9, 0.76, 0.7)] == ["▔", "▀", "█", "█"]


def test_fewer_columns_keep_the_lowest() -> None:
    assert resampled((1.0, 0.5, None, None, 2.0, 3.0), 3) == (0.5, None, 2.0)
    assert resampled((1.0, 2.0), 4) == (1.0, 1.0, 2.0, 2.0)
    assert resampled((), 3) == ()


@pytest.mark.parametrize("width", [60, 80, 100, 160, 300])
def test_rows_fit_and_leave_room_for_history(width: int) -> None:
    view = confined()
    columns = lra_columns(view.lras, width)
    assert columns.history >= LEAST_HISTORY
    widest = [max(len(str(row.cells[n])) for row in view.lras) + 2 for n in columns.places]
    assert sum(widest) + columns.history <= width
    assert batch_columns(view.batch, width).places[0] == 0
    assert (5 in columns.places) is (width >= 100)


def test_order_and_filter_of_rows() -> None:
    view = confined()
    assert [row.name for row in ordered(view, "configured", "")[0]] == ["db", "cache"]
    assert [row.name for row in ordered(view, "name", "")[0]] == ["cache", "db"]
    assert [row.name for row in ordered(view, "attention", "")[0]] == ["db", "cache"]
    assert [row.name for row in ordered(view, "use", "CA")[0]] == ["cache"]
    assert [row.name for row in ordered(view, "use", "zz")[1]] == []


# --- the screen ------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    filled(tmp_path / "perphd.db", 300)
    with serving(tmp_path) as found:
        yield found


@asynccontextmanager
async def screen(served: Served, size: tuple[int, int]) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    app = Top(Source(Client(served.socket)), 0.1)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.state.frame is not None and app.state.history is not None)
        yield app, pilot


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Wait for it; a test that waits for ever is ended by its runner's limit."""
    for _ in range(200):
        await pilot.pause()
        if holds():
            return
        await asyncio.sleep(0.05)
    said = [shown(pilot.app, name) for name in ("title", "message")]  # type: ignore[arg-type]
    raise AssertionError(f"it has not happened within ten seconds: {said}, {pilot.app.screen}")


async def ask(app: Top, pilot: Pilot[None], key: str, answer: str) -> None:
    """A key that asks, and its answer once the question is there."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, QuestionScreen))
    await pilot.press(answer)
    await until(pilot, lambda: not isinstance(app.screen, QuestionScreen))


def shown(app: Top, name: str) -> str:
    text = app.screen_stack[0].query_one(f"#{name}", Lines).shown
    return text.plain if text is not None else ""


def row_of(app: Top, table: str, row: str) -> list[str]:
    return [cell.plain for cell in app.screen_stack[0].query_one(f"#{table}", Rows).get_row(row)]


def front(app: Top) -> str:
    """What the window in front says."""
    from rich.console import Console

    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        for part in app.screen.query(Static):
            console.print(part.content)
    return capture.get()


@pytest.mark.parametrize("size", SIZES)
async def test_rows_strips_and_history(served: Served, size: tuple[int, int]) -> None:
    async with screen(served, size) as (app, pilot):
        await until(pilot, lambda: any(bar in row_of(app, "lras", "db")[-1] for bar in BARS))
        row = row_of(app, "lras", "db")
        assert row[:3] == ["db", "slow: CPU", "812/s"]
        assert row_of(app, "batch", "pi")[:2] == ["pi", "running"]
        assert shown(app, "cores") == "cores  +D +D +D +D   + shared 0-3  D db 4-7"
        assert shown(app, "title") == "perphd 1.2.3: enforce, up 2 h 03 min"
        assert "! the store was damaged" in shown(app, "needs")
        await until(pilot, lambda: "db: grow: more; than before" in shown(app, "events"))
        assert ("performance by target over the last 1h, now 0.67" in shown(app, "graph")) is (size[1] > 40)
        wide = app.screen.query_one("#lras", Rows).virtual_size.width
        assert wide <= size[0]


async def test_enter_explains_with_the_alternatives(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Reading))
        said = front(app)
        assert "It was degraded, short of cpu because of pi" in said
        assert "meets it at the lowest price" in said
        assert "misses the target" in said
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Reading))
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, Reading))
        assert "pi: CPUs 0-3, idle" in front(app)


async def test_help_and_events_are_windows(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        assert "through the stored past" in front(app)
        await pilot.press("question_mark")
        assert not isinstance(app.screen, Reading)
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, Reading))
        assert "decision" in front(app)


async def test_pause_asks_first(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, as_it_was = served.agent, served.agent.status
    monkeypatch.setattr(agent, "status", lambda: replace(as_it_was(), pauses=agent.pauses))
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("p")
        assert isinstance(app.screen, QuestionScreen)
        assert "Pause perphd?" in front(app)
        await pilot.press("n")
        assert served.agent.calls.count(("pause", None, None, "perphctl top")) == 0
        await ask(app, pilot, "p", "y")
        await until(pilot, lambda: ("pause", None, None, "perphctl top") in served.agent.calls)
        await until(pilot, lambda: "all workloads: paused until perphctl resume" in shown(app, "needs"))
        await pilot.press("p")
        assert "Resume?" in front(app)
        await pilot.press("y")
        await until(pilot, lambda: ("resume", None) in served.agent.calls)


async def test_pause_of_the_chosen_workload(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("tab", "p")
        assert "pause pi alone" in front(app)
        await pilot.press("w")
        await until(pilot, lambda: ("pause", "pi", None, "perphctl top") in served.agent.calls)


async def test_who_may_only_read_is_told_so(served: Served) -> None:
    served.peer = READER
    async with screen(served, (160, 45)) as (app, pilot):
        await ask(app, pilot, "p", "y")
        await until(pilot, lambda: "may not change anything here" in shown(app, "message"))
        assert "group perphd-admin" in shown(app, "message")
        assert served.agent.pauses == ()


async def test_mode_asks_first(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("m")
        assert "Set observe?" in front(app)
        await pilot.press("escape")
        assert ("set_mode", Mode.OBSERVE, None) not in served.agent.calls
        await ask(app, pilot, "m", "y")
        await until(pilot, lambda: "observe" in shown(app, "title"))
        assert ("set_mode", Mode.OBSERVE, None) in served.agent.calls


async def test_filter_and_sort(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        table = app.query_one("#lras", Rows)
        await pilot.press("slash", "c", "a")
        await until(pilot, lambda: table.row_count == 1)
        assert row_of(app, "lras", "cache")[0] == "cache [observe]"
        assert not app.query_one("#batch").display
        await pilot.press("enter")
        assert "only *ca*" in shown(app, "title")
        await pilot.press("escape")
        await until(pilot, lambda: table.row_count == 2)
        await pilot.press("s", "s")
        assert "sorted by name" in shown(app, "title")
        assert [str(key.value) for key in table.rows] == ["cache", "db"]


@pytest.mark.parametrize("size", SIZES)
async def test_replay_of_the_past(served: Served, size: tuple[int, int]) -> None:
    """The store ends when the served clock says; the terminal's own clock is of no interest to it."""
    async with screen(served, size) as (app, pilot):
        at_s = NOW - 20
        app._go(at_s)
        await until(pilot, lambda: row_of(app, "lras", "db")[2] == "603/s")
        assert shown(app, "title").startswith(" THE PAST: 1970-01-12")
        assert row_of(app, "batch", "pi")[-1] == "CPUs 3,7, idle"
        assert "LRAs 0-2,4-6" not in shown(app, "cores")  # cache did not run
        assert "D db 0-2,4-6" in shown(app, "cores")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until(pilot, lambda: row_of(app, "lras", "db")[2] == "1206/s")
        assert "cpus" not in row_of(app, "batch", "pi")[-1].lower()
        await pilot.press("p")
        assert "the screen shows the past" in shown(app, "message")
        assert not isinstance(app.screen, QuestionScreen)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Reading))
        assert "It was healthy" in front(app)
        await pilot.press("escape", "right_square_bracket", "right_square_bracket")
        await until(pilot, lambda: row_of(app, "lras", "db")[2] == "603/s")
        await pilot.press("escape")
        await until(pilot, lambda: row_of(app, "lras", "db")[2] == "812/s")
        assert app.state.at_unix_s is None


async def test_to_the_change_and_to_the_first_moment(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: app.state.frame is not None and app.state.frame.at_unix_s is not None)
        assert app.state.at_unix_s == pytest.approx(NOW - 60 + 0.01)
        assert row_of(app, "lras", "db")[1] == "slow: CPU"
        for _ in range(6):
            await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.state.frame is not None and app.state.frame.at_unix_s == NOW - 300)
        assert "first moment" in shown(app, "message")


async def test_a_daemon_that_goes_comes_back(tmp_path: Path) -> None:
    filled(tmp_path / "perphd.db", 60)
    with serving(tmp_path) as served:
        app = Top(Source(Client(served.socket)), 0.1)
        running = app.run_test(size=(80, 24))
        pilot = await running.__aenter__()
        await until(pilot, lambda: app.state.frame is not None)
    await until(pilot, lambda: "no daemon answers" in shown(app, "title"))
    assert row_of(app, "lras", "db")[0] == "db"
    with serving(tmp_path):
        await until(pilot, lambda: shown(app, "title").startswith("perphd 1.2.3"))
        await running.__aexit__(None, None, None)


async def test_longer_and_shorter_history(served: Served) -> None:
    async with screen(served, (160, 45)) as (app, pilot):
        await pilot.press("minus")
        await until(pilot, lambda: app.state.history is not None and app.state.history.step_s < 10)
        for _ in range(9):
            await pilot.press("plus")
        await until(pilot, lambda: app.state.history is not None and app.state.history.step_s > 1000)
        assert "the last 7d" in shown(app, "graph") or shown(app, "graph") == ""


async def test_nothing_new_is_not_drawn_again(served: Served) -> None:
    async with screen(served, (80, 24)) as (app, pilot):
        drawn: list[str] = []
        for name in ("host", "cores", "changes", "needs", "title", "message"):
            lines = app.query_one(f"#{name}", Lines)
            lines.update = lambda *_, name=name, **__: drawn.append(name)  # type: ignore[method-assign]
        looks = app.state.frame
        await until(pilot, lambda: app.state.frame is not looks)
        looks = app.state.frame
        await until(pilot, lambda: app.state.frame is not looks)
        assert drawn == []
        app.query_one("#title", Lines).put(Text("other"))
        assert drawn == ["title"]


async def test_without_a_store_everything_else_is_shown(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        async with Top(Source(Client(served.socket)), 0.1).run_test(size=(80, 24)) as pilot:
            app = pilot.app
            assert isinstance(app, Top)
            await until(pilot, lambda: "the past is unavailable: " in shown(app, "message"))
            assert row_of(app, "lras", "db")[1] == "slow: CPU"


# --- the command -----------------------------------------------------------------------------------------------


def test_piped_it_prints_the_status(served: Served) -> None:
    result = CliRunner().invoke(cli, ["--socket", served.socket, "top", "-n", "2", "--interval", "0.1"])
    assert result.exit_code == 0
    assert result.stdout.count("perphd 1.2.3: enforce") == 2
    assert "slow: CPU" in result.stdout


def test_without_textual_it_says_what_to_install(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "perphd.commands.top."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("perphd.commands.top.is_terminal", lambda: True)
    result = CliRunner().invoke(cli, ["--socket", served.socket, "top"])
    assert result.exit_code == 1
    assert "top needs the package textual" in result.stderr
    assert "perphctl top --plain" in result.stderr


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_it_is_interactive_only_with_a_keyboard_and_a_screen(
    monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    from perphd.commands.top import is_terminal

    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda name=name: name != closed))
    monkeypatch.setenv("TERM", "xterm")
    assert not is_terminal()
    monkeypatch.setattr(sys, closed, SimpleNamespace(isatty=lambda: True))
    assert is_terminal()


@pytest.mark.parametrize("kind", [None, "", "dumb"])
def test_a_terminal_without_a_screen_has_the_plain_form(
    monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    from perphd.commands.top import is_terminal

    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: True))
    if kind is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", kind)
    assert not is_terminal()


def test_nothing_else_imports_textual() -> None:
    """It is the client's alone, and only of this command."""
    import perphd.control

    root = Path(perphd.control.__file__).parents[1]
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "import textual" in (text := path.read_text()) or "from textual" in text
    }
    assert users
    assert all(path.startswith("commands/top/") for path in users)


def test_changes_of_the_view_keep_their_words() -> None:
    made = decision(90.0)
    change = Change(90.0, "db", made.action, made.current, made.chosen, Mode.OBSERVE, made.reason)
    found = replace(FakeAgent(Config()).status(), changes=(change,))
    assert (
        view_of(found, TOPOLOGY, 100.0).changes[0].text
        == "db: would be shared -> 2+2 shared (more protection)"
    )
