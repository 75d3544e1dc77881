"""The board of SLI sources: slow ones are heard late, broken ones are missing, none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perphd.agent.sli import SliBoard
from perphd.domain.reading import Awaited, Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.monitor.sli import SliReading
from perphd.monitor.sli.resolution import EXACT, Resolution


@dataclass
class Source:
    """Answers a question when it is told to."""

    asked: list[float] = field(default_factory=list)
    answers: list[asyncio.Future[SliReading]] = field(default_factory=list)
    used: list[float | None] = field(default_factory=list)
    cancelled: int = 0
    closed: int = 0
    close_error: Exception | None = None

    @property
    def resolution(self) -> Resolution:
        return EXACT

    def worked(self, cpu_s: float | None) -> None:
        self.used.append(cpu_s)

    async def read(self, now_s: float) -> SliReading:
        self.asked.append(now_s)
        self.answers.append(asyncio.get_running_loop().create_future())
        try:
            return await self.answers[-1]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def close(self) -> None:
        self.closed += 1
        if self.close_error is not None:
            raise self.close_error


def rate(value: float) -> SliReading:
    missing = Unavailable("not told")
    return SliReading(value, missing, missing, missing, missing)


async def board_of(sources: dict[str, Source]) -> SliBoard:
    board = SliBoard(lambda spec, _: sources[spec.source], timeout_s=0.001)
    await board.follow([WorkloadSpec(name, Kind.LRA, f"/{name}", sli=SliSpec(name)) for name in sources])
    return board


async def test_an_answer_that_came_late_is_the_next_ticks_reading() -> None:
    slow = Source()
    board = await board_of({"slow": slow})
    for n in range(3):
        assert "no answer within" in str((await board.read(10.0 * n))["slow"].work_rate_per_s)
        assert "no answer within" in str((await board.read(10.0 * n + 1))["slow"].work_rate_per_s)
        slow.answers[-1].set_result(rate(n + 5.0))
        await asyncio.sleep(0)
        assert (await board.read(10.0 * n + 2))["slow"].work_rate_per_s == n + 5.0
    assert slow.asked == [0.0, 10.0, 20.0], "asked again only after the answer was handed over"
    await board.close()


async def test_a_late_answer_is_awaited_before_it_is_missing() -> None:
    slow = Source()
    board = SliBoard(lambda *_: slow, timeout_s=0.001, late_s=1.0)
    await board.follow([WorkloadSpec("db", Kind.LRA, "/db", sli=SliSpec("redis"))])
    assert isinstance((await board.read(0.0))["db"].work_rate_per_s, Awaited)
    assert "no answer within" in str((await board.read(1.0))["db"].work_rate_per_s)
    slow.answers[-1].set_result(rate(7.0))
    await asyncio.sleep(0)
    assert (await board.read(2.0))["db"].work_rate_per_s == 7.0
    await board.close()


async def test_a_source_that_gives_nothing_is_named_with_its_reason_and_how_long() -> None:
    source = Source()
    board = SliBoard(lambda *_: source, timeout_s=1.0)
    await board.follow([WorkloadSpec("db", Kind.LRA, "/db", sli=SliSpec("redis"))])

    async def reads(began_s: int, ended_s: int, answer: Callable[[int], SliReading]) -> str:
        for second in range(began_s, ended_s):
            asked = asyncio.ensure_future(board.read(float(second)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            source.answers[-1].set_result(answer(second))
            await asked
        return board.silence("db", ended_s - 1.0)

    hung = SliReading.missing(Unavailable("redis: no answer within 1 s"))
    assert await reads(0, 60, lambda _: rate(9.0)) == ""
    assert await reads(60, 69, lambda _: hung) == "", "a short gap needs nobody"
    told = await reads(69, 181, lambda _: hung)
    assert told == "its indicator gives no rate: no answer within 1 s (for 2 min)"
    told = await reads(181, 241, lambda second: rate(9.0) if second % 10 == 0 else hung)
    assert told == "its indicator gave no rate in 54 of the last 60 samples: no answer within 1 s"
    assert await reads(241, 300, lambda _: rate(9.0)) == ""
    await board.close()


async def test_a_source_that_fails_late_is_missing_and_asked_again() -> None:
    slow = Source()
    board = await board_of({"slow": slow})
    await board.read(0.0)
    slow.answers[-1].set_exception(OSError("refused"))
    await asyncio.sleep(0)
    assert "source failed: refused" in str((await board.read(1.0))["slow"].work_rate_per_s)
    await board.read(2.0)
    assert slow.asked == [0.0, 2.0]
    await board.close()


async def test_closing_leaves_no_question_behind_and_closes_all() -> None:
    first, second = Source(close_error=OSError("broken pipe")), Source()
    board = await board_of({"first": first, "second": second})
    await board.read(0.0)
    await board.close()
    assert (first.cancelled, second.cancelled) == (1, 1)
    assert (first.closed, second.closed) == (1, 1)
    assert len(asyncio.all_tasks()) == 1
    assert await board.read(1.0) == {}


async def test_sources_learn_how_much_their_applications_worked() -> None:
    busy, idle = Source(), Source()
    board = await board_of({"busy": busy, "idle": idle})
    board.worked((Sample("busy", 1.0, 0.5, 2.0), Sample("idle", 1.0, 0.5), Sample("another", 1.0, 0.5, 1.0)))
    assert (busy.used, idle.used) == ([1.0], [None])
    assert (board.resolution("busy"), board.resolution("another")) == ("exact (stated)", "")
    shown = [(item.name, item.detail) for item in board.capabilities()]
    assert shown[0] == ("indicators of busy", "busy, resolution exact (stated)")
    await board.close()
