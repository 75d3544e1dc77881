"""Notices: what is told when, how often, to whom, and that a receiver that fails is in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from perphd.agent import spawn
from perphd.agent.tally import Tally
from perphd.config.file import parse
from perphd.config.tables import NotifyConfig
from perphd.control import hooks as module
from perphd.control.hooks import NoticeHooks, conditions, payload
from perphd.domain.control import Pause
from perphd.domain.decision import Prediction
from perphd.domain.errors import ConfigError
from perphd.domain.incident import HOUR_S, Condition, IncidentKind, Notice, NoticeFilter, NoticeRule
from perphd.domain.sample import Quality
from perphd.domain.status import AgentStatus
from tests.unit.control_fake import FakeAgent

DEGRADED = Condition(IncidentKind.DEGRADED, "db", "db: below its target")
RULE = NoticeRule(frozenset(IncidentKind), after_s=60.0, pause_s=900.0, most_per_h=20)


def told(filtered: NoticeFilter, at_s: float, *conditions: Condition) -> list[bool]:
    return [notice.began for notice in filtered.look(at_s, conditions)]


def test_a_condition_is_told_once_it_lasts_and_once_it_ends():
    filtered = NoticeFilter(RULE)
    assert told(filtered, 0.0, DEGRADED) == []
    assert told(filtered, 59.0, DEGRADED) == []
    assert told(filtered, 60.0, replace(DEGRADED, text="worse")) == [True]
    assert told(filtered, 500.0, DEGRADED) == []
    assert told(filtered, 501.0) == [False]
    assert told(filtered, 502.0) == []


def test_a_short_condition_is_never_told():
    filtered = NoticeFilter(RULE)
    for second in range(0, 3600, 60):
        assert told(filtered, float(second), DEGRADED) == []
        assert told(filtered, second + 30.0) == []


def test_one_that_comes_and_goes_is_told_again_after_the_pause_only():
    filtered = NoticeFilter(replace(RULE, after_s=0.0))
    began = [
        second
        for second in range(0, 3600, 10)
        for is_begin in told(filtered, float(second), *([DEGRADED] if second % 20 == 0 else []))
        if is_begin
    ]
    assert began == [0, 900, 1800, 2700]


def test_kinds_that_nobody_asked_for_are_not_told():
    filtered = NoticeFilter(NoticeRule(frozenset({IncidentKind.PAUSE}), after_s=0.0))
    assert told(filtered, 0.0, DEGRADED) == []


def test_what_the_limit_kept_back_is_counted():
    rule = replace(RULE, after_s=0.0, pause_s=1.0, most_per_h=2)
    filtered = NoticeFilter(rule)
    many = [replace(DEGRADED, workload=f"db{n}") for n in range(5)]
    assert len(filtered.look(0.0, many)) == 2
    assert filtered.look(10.0, many) == ()
    later = filtered.look(HOUR_S + 1.0, many)
    assert len(later) == 2
    assert later[0].left_out == 3


_STEPS = st.lists(st.tuples(st.floats(0.1, 600.0), st.sets(st.sampled_from("abc"))), min_size=1, max_size=60)


@given(_STEPS, st.floats(0.0, 300.0), st.floats(1.0, 2000.0), st.integers(1, 5))
def test_notices_keep_their_rules(
    steps: list[tuple[float, set[str]]], after_s: float, pause_s: float, most: int
):
    filtered = NoticeFilter(NoticeRule(frozenset(IncidentKind), after_s, pause_s, most))
    now_s, open_now = 0.0, set[str]()
    began: dict[str, list[float]] = {}
    for step_s, wrong in steps:
        now_s += step_s
        for notice in filtered.look(now_s, [replace(DEGRADED, workload=name) for name in wrong]):
            name = notice.condition.workload
            if notice.began:
                assert name in wrong
                assert name not in open_now
                assert now_s - notice.since_s >= after_s
                assert all(now_s - before_s >= pause_s for before_s in began.get(name, ()))
                began.setdefault(name, []).append(now_s)
                open_now.add(name)
            else:
                assert name not in wrong
                open_now.remove(name)  # an end follows its beginning
        sent = [at_s for times in began.values() for at_s in times if now_s - at_s < HOUR_S]
        assert len(sent) <= most
        assert open_now <= wrong


# --- what is wrong ----------------------------------------------------------------------------------------------


def wrong(status: AgentStatus, tally: Tally) -> set[tuple[IncidentKind, str]]:
    return {(found.kind, found.workload) for found in conditions(status, tally)}


def test_conditions_of_a_status():
    agent = FakeAgent(parse("", "f"))
    status = agent.status()
    assert wrong(status, agent.tally) == {(IncidentKind.DEGRADED, "db")}
    agent.tally.conflicts = (("pi", "/x/cpu.weight", "pi cpu.weight: somebody else writes"),)
    status = replace(status, pauses=(Pause("pi", 0.0, None, "deploy", "root"),))
    db = next(item for item in status.workloads if item.spec.name == "db")
    assert db.sample is not None
    silent = replace(db, sample=replace(db.sample, quality=(Quality.SLI_MISSING,)), full_sample=None)
    status = replace(status, workloads=(silent, *(w for w in status.workloads if w.spec.name != "db")))
    assert wrong(status, agent.tally) == {
        (IncidentKind.DEGRADED, "db"),
        (IncidentKind.SLI_LOST, "db"),
        (IncidentKind.PAUSE, "pi"),
        (IncidentKind.CONFLICT, "pi"),
    }


def test_an_unreachable_target_is_one_that_no_candidate_meets():
    agent = FakeAgent(parse("", "f"))
    status = agent.status()
    db = next(item for item in status.workloads if item.spec.name == "db")
    assert db.decision is not None
    hopeless = tuple(replace(c, prediction=Prediction(0.7, 0.6, 0.8, 1.0)) for c in db.decision.candidates)
    assert hopeless
    missed = replace(db, decision=replace(db.decision, candidates=hopeless))
    assert (IncidentKind.UNREACHABLE, "db") in wrong(replace(status, workloads=(missed,)), agent.tally)


# --- delivery ---------------------------------------------------------------------------------------------------


def test_a_notice_is_json_with_the_decision():
    agent = FakeAgent(parse("", "f"))
    (condition,) = conditions(agent.status(), agent.tally)
    body = payload(Notice(condition, True, 40.0), 100.0, 1_700_000_000.0)
    json.dumps(body, allow_nan=False)
    assert (body["schema"], body["state"], body["kind"], body["workload"]) == (1, "began", "degraded", "db")
    assert body["at"] == "2023-11-14T22:13:20+00:00"
    assert body["since"] == "2023-11-14T22:12:20+00:00"
    assert body["decision"]["workload"] == "db"


async def run_until(hooks: NoticeHooks, is_done: Callable[[], bool]) -> None:
    await hooks.start()
    try:
        async with asyncio.timeout(30):
            while not is_done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await hooks.stop()


def receiver(**keys: Any) -> NotifyConfig:
    return NotifyConfig(**{"name": "r", "after_s": 0.0, "timeout_s": 5.0, **keys})


async def test_a_webhook_gets_the_notice_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perphd.control.hooks.RETRY_S", (0.01, 0.01))
    got: list[tuple[str, Any]] = []
    answers = iter([500, 500, 200])  # the third try is taken

    async def take(request: web.Request) -> web.Response:
        body = await request.json()
        status = next(answers, 200)
        if status == 200:
            got.append((request.headers["Authorization"], body))
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    port = runner.addresses[0][1]
    token = tmp_path / "token"
    token.write_text("secret\n")
    agent = FakeAgent(parse("", "f"))
    to = receiver(url=f"http://127.0.0.1:{port}/hook", bearer_token_file=str(token))
    try:
        await run_until(NoticeHooks([to], agent.status, lambda: agent.tally, every_s=0.01), lambda: bool(got))
    finally:
        await runner.cleanup()
    assert got[0][0] == "Bearer secret"
    assert got[0][1]["kind"] == "degraded"


async def test_a_command_gets_the_notice_on_standard_input(tmp_path: Path):
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
    to = receiver(command=f"{sys.executable} -c '{code.replace(chr(39), chr(34))}' {out}")
    agent = FakeAgent(parse("", "f"))
    hooks = NoticeHooks([to], agent.status, lambda: agent.tally, every_s=0.01)
    await run_until(hooks, lambda: bool(out.exists() and out.read_text().endswith("\n")))
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["decision"]["workload"] == "db"


def runs(pid: str) -> bool:
    """False for a process that has ended, even if nobody has asked for its status yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_command_is_started_beside_the_loop_and_dies_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    threads: list[threading.Thread] = []
    start = spawn.start

    def started(*words: Any, **more: Any) -> int:
        threads.append(threading.current_thread())
        return start(*words, **more)

    monkeypatch.setattr(spawn, "start", started)
    pid = tmp_path / "pid"
    script = f"sleep 60 & echo $! >{pid}; wait"
    with pytest.raises(TimeoutError):
        await module._run(receiver(command=f"/bin/sh -c '{script}'", timeout_s=1.0), {})
    assert threads
    assert threading.main_thread() not in threads
    for _ in range(500):
        if not runs(pid.read_text().strip()):
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("what the command started still runs")


async def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path):
    out = tmp_path / "out"
    slow = receiver(name="slow", command="/bin/sleep 600", timeout_s=0.1)
    quick = receiver(name="quick", command=f"/usr/bin/tee {out}")
    agent = FakeAgent(parse("", "f"))
    hooks = NoticeHooks([slow, quick], agent.status, lambda: agent.tally, every_s=0.01)
    await run_until(hooks, lambda: bool(out.exists() and out.read_text()))
    assert json.loads(out.read_text())["workload"] == "db"


async def test_a_failure_that_nobody_foresaw_costs_one_notice_and_not_the_receiver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    got: list[dict[str, Any]] = []

    async def post(_: NotifyConfig, body: dict[str, Any]) -> None:
        got.append(body)
        if len(got) == 1:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_post", post)
    monkeypatch.setattr(module, "RETRY_S", (0.0,))
    agent = FakeAgent(parse("", "f"))
    hooks = NoticeHooks(
        [receiver(url="http://127.0.0.1:1/x")], agent.status, lambda: agent.tally, every_s=0.01
    )
    await run_until(hooks, lambda: len(got) > 1)
    assert "can't start new thread" in caplog.text


# --- configuration ----------------------------------------------------------------------------------------------


def test_receivers_are_read():
    text = '[[notify]]\nname = "pager"\nurl = "https://pager.example/x"\non = "degraded, sli-lost"\n'
    pager, chat = parse(f"{text}[notify.tuning]\nafter_s = 5\n{text.replace('pager', 'chat')}", "f").notify
    assert pager.rule.kinds == {IncidentKind.DEGRADED, IncidentKind.SLI_LOST}
    assert (pager.after_s, chat.after_s) == (5.0, 60.0)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('name = "a"', "notify[0]"),
        ('name = "a"\nurl = "http://x"\ncommand = "/bin/true"', "notify[0]"),
        ('name = "a"\nurl = "ftp://x"', "notify[0].url"),
        ('name = "a"\nurl = "http://"', "notify[0].url"),
        ('name = "a"\ncommand = "true"', "notify[0].command"),
        ('name = "a"\ncommand = "/bin/sh \'"', "notify[0].command"),
        ('name = "a"\ncommand = "/bin/true"\non = "degraded,slow"', "notify[0].on"),
        ('name = "a"\ncommand = "/bin/true"\non = ""', "notify[0].on"),
        ('name = "a"\ncommand = "/bin/true"\nbearer_token_file = "/t"', "notify[0].bearer_token_file"),
        ('name = "a"\ncommand = "/bin/true"\nafter = 3', "notify[0].after"),
        ('name = "a"\ncommand = "/bin/true"\nafter_s = 3', "notify[0].after_s"),
        ('name = "a"\ncommand = "/bin/true"\n[notify.tuning]\nafter_s = -3', "notify[0].tuning.after_s"),
        ('command = "/bin/true"', "notify[0].name"),
    ],
)
def test_refusals_name_the_key(text: str, key: str):
    with pytest.raises(ConfigError) as refused:
        parse(f"[[notify]]\n{text}\n", "f")
    assert refused.value.key == key


def test_two_receivers_of_one_name_are_refused():
    one = '[[notify]]\nname = "a"\ncommand = "/bin/true"\n'
    with pytest.raises(ConfigError, match="twice"):
        parse(one + one, "f")
