"""The daemon's life around the loop: the watchdog is fed, and the end gives everything back whatever fails."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import pytest

from perphd.agent import service as module
from perphd.agent.agent import Agent
from perphd.agent.service import Notifier, Server, Service
from perphd.config.file import Config, DaemonConfig, IsolationConfig, load
from perphd.domain.errors import PerphError
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.fs import RealFs
from perphd.isolation import JournalInUse
from perphd.isolation.restore_report import FileReport, RestoreReport


@dataclass
class FakeNotifier(Notifier):
    service: Service
    enough: int = 3
    told: int = 0

    def alive(self) -> None:
        self.told += 1
        if self.told == self.enough:
            self.service._stop.set()


@dataclass
class FakeAgent:
    stopped: list[bool] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    early_ticks: None = None
    pace_s: float = 1.0

    async def tick(self, now_s: float, period_s: float) -> None:
        self.at_s.append(now_s)
        raise PerphError("every tick fails")

    async def stop(self, restore: bool) -> None:
        self.stopped.append(restore)

    def missed(self, ticks: int) -> None:
        pass


class FakeServer:
    def __init__(self, start: Exception | None, stop: Exception | None) -> None:
        self._start, self._stop = start, stop

    async def start(self) -> None:
        if self._start is not None:
            raise self._start

    async def stop(self) -> None:
        if self._stop is not None:
            raise self._stop


def service_of(server: Server | None = None) -> Service:
    return Service(Path("/nowhere"), Config(), lambda agent, reload: server or FakeServer(None, None))


async def test_the_watchdog_is_fed_throughout_a_long_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_STEP_S", 0.001)
    service = service_of()
    service._notifier = notifier = FakeNotifier(service, enough=5)
    await service._wait(time.monotonic() + 3600, math.inf)
    assert notifier.told == 5


async def test_without_ticks_that_end_the_watchdog_is_not_fed() -> None:
    service = service_of()
    service._notifier = notifier = FakeNotifier(service)
    now_s = time.monotonic()
    await service._wait(now_s, now_s)
    assert notifier.told == 0


async def test_a_failed_tick_alone_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_STEP_S", 0.001)
    service, agent = service_of(), FakeAgent()
    service._notifier = notifier = FakeNotifier(service)
    await service._loop(cast(Agent, agent))
    assert len(agent.at_s) >= 1
    assert notifier.told == 3


async def test_a_simulated_host_begins_at_none_but_its_agent_lives_by_the_daemons_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the agent decides is shown with times of day, which are told from the daemon's clock.
    monkeypatch.setattr(module, "ALIVE_STEP_S", 0.001)
    service, agent, advanced = service_of(), FakeAgent(), list[float]()
    service._notifier = FakeNotifier(service)
    service._advance = advanced.append
    before_s = time.monotonic()
    await service._loop(cast(Agent, agent))
    after_s = time.monotonic()
    assert all(before_s <= at_s <= after_s for at_s in agent.at_s)
    assert len(agent.at_s) == len(advanced) >= 1
    assert 0.0 <= advanced[0] <= after_s - before_s


@pytest.mark.parametrize(
    "server", [FakeServer(None, OSError("stop")), FakeServer(OSError("start"), OSError("stop"))]
)
async def test_everything_is_given_back_even_if_the_server_does_not_stop(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, agent = service_of(server), FakeAgent()
    monkeypatch.setattr(service, "_real", lambda: agent)
    monkeypatch.setattr(service, "_watch_signals", lambda agent: service._stop.set())
    with pytest.raises(OSError, match="stop"):
        await service.run()
    assert agent.stopped == [True]


@pytest.mark.parametrize("units", ["systemd", "leave"])
def test_a_daemon_that_leaves_units_alone_takes_none_over(
    units: Literal["systemd", "leave"], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def restore(fs: object, state_dir: object, *, but: object, units: bool) -> RestoreReport:
        asked.append(units)
        return RestoreReport()

    monkeypatch.setattr(module, "restore", restore)
    monkeypatch.setattr(module, "build_agent", lambda config, clock: FakeAgent())
    config = Config(isolation=IsolationConfig(units=units))
    Service(Path("/nowhere"), config, lambda agent, reload: FakeServer(None, None))._real()
    assert asked == [units == "systemd"]


def test_what_another_state_directory_holds_is_given_back_at_the_start_or_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[object, ...]] = []
    given_back: list[str] = []

    def orphaned_journals(*of: object) -> tuple[str, ...]:
        asked.append(of)
        return ("/old", "/live")

    def restore(fs: object, state_dir: object, **_: object) -> RestoreReport:
        if str(state_dir) == "/live":
            raise JournalInUse("/live", 77)
        given_back.append(str(state_dir))
        return RestoreReport(restored=(FileReport("/f", "job", "cpu_weight", "1024"),))

    monkeypatch.setattr(module, "orphaned_journals", orphaned_journals)
    monkeypatch.setattr(module, "restore", restore)
    specs = (
        WorkloadSpec("app", Kind.LRA, "/app", mode=Mode.ENFORCE),
        WorkloadSpec("job", Kind.BATCH, "/job"),
    )
    config = Config(daemon=DaemonConfig(state_dir="/new"), workloads=specs)
    service = Service(Path("/etc/p.toml"), config, lambda agent, reload: FakeServer(None, None))
    service._restore_orphaned(RealFs())
    assert given_back == ["/old"]
    assert [(of[0], of[1], of[3]) for of in asked] == [("/new", "/etc/p.toml", ["/app"])]
    assert "state directory /old had not restored its changes: files: 1 restored" in caplog.text
    assert "process 77" in caplog.text
    asked.clear()
    service._restore_orphaned(RealFs("/nowhere"))
    assert not asked, "not this kernel"


def test_a_systemd_that_does_not_listen_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf:
        def notify(self, status: str) -> bool:
            raise ConnectionRefusedError(111, "refused")

    notifier = Notifier()
    notifier._daemon = Deaf()
    with caplog.at_level(logging.ERROR):
        notifier.alive()
        notifier.ready("observe")
        notifier.stopping()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot notify systemd of WATCHDOG=1: [Errno 111] refused; further failures are not logged, but retried"
    ]


async def test_every_step_of_a_slow_start_gets_time_and_readiness_waits_for_no_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    class Systemd:
        def notify(self, status: str) -> bool:
            done.append(status)
            return True

    class Answering(FakeServer):
        async def start(self) -> None:
            done.append("the socket answers")

    class Tested(FakeAgent):
        def test_detector(self) -> None:
            assert threading.current_thread() is not threading.main_thread(), "rounds would wait for it"
            tested.wait(30.0)
            done.append("the detector is tested")
            loop.call_soon_threadsafe(service._stop.set)

    async def rounds(agent: FakeAgent) -> None:
        done.append("the first round")
        tested.set()
        await service._stop.wait()

    tested, loop = threading.Event(), asyncio.get_running_loop()
    service, agent = service_of(Answering(None, None)), Tested()
    service._notifier._daemon = Systemd()

    def real() -> FakeAgent:
        done.append("restored")
        return agent

    monkeypatch.setattr(service, "_real", real)
    monkeypatch.setattr(service, "_watch_signals", lambda agent: None)
    monkeypatch.setattr(service, "_loop", rounds)
    await service.run()
    assert [text.partition("\n")[0] for text in done] == [
        "EXTEND_TIMEOUT_USEC=60000000",
        "restored",
        "EXTEND_TIMEOUT_USEC=60000000",
        "the socket answers",
        "READY=1",
        "the first round",
        "the detector is tested",
        "STOPPING=1",
    ]


async def test_who_answers_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[bool] = []
    service, agent = service_of(), FakeAgent()

    class Answering(FakeServer):
        async def start(self) -> None:
            assert watched, "a signal that comes as soon as the socket answers would kill the daemon"
            raise OSError("that is all")

    service._serve = lambda agent, reload: Answering(None, None)
    monkeypatch.setattr(service, "_real", lambda: agent)
    monkeypatch.setattr(service, "_watch_signals", lambda agent: watched.append(True))
    with pytest.raises(OSError, match="that is all"):
        await service.run()
    assert agent.stopped == [True]


async def test_a_simulated_host_keeps_its_indicators_over_a_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path, taken = tmp_path / "perphd.toml", []
    path.write_text(
        f'[tuning.host]\nkind = "simulated"\n[daemon]\nstate_dir = "{tmp_path}"\n'
        '[[lra]]\nname = "db"\ncgroup = "/no-such/db"\n[[batch]]\nname = "b"\ncgroup = "/no-such/b"\n'
    )
    service = Service(path, load(path), lambda agent, reload: FakeServer(None, None))
    service._simulated()

    class Taking:
        async def reload(self, config: Config, by: object) -> None:
            taken.append(config)

    more = '[[lra]]\nname = "new"\ncgroup = "/no-such/new"\n'
    path.write_text(path.read_text() + more)
    await service._reload(Taking())  # type: ignore[arg-type]
    sources = {spec.name: spec.sli and spec.sli.source for spec in taken[0].workloads}
    assert sources == {"db": "simulated", "new": None, "b": None}
    assert "does not exist" not in caplog.text
