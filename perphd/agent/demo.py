"""``perphd demo``: the whole loop on a simulated host, told line by line. No root, nothing of this machine is touched.

The same scenario three times in virtual time: a database alone, the database beside a batch job that nobody
controls, and beside the job with perphd. Exit code 0 only if perphd brought the database back to its target
while the job ran, and left every kernel file as it had found it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.console import Console
from rich.text import Text

from perphd.agent.composition import build_agent
from perphd.agent.config import Config, DaemonConfig, StoreConfig
from perphd.agent.demo_report import Comparison, Second
from perphd.agent.loop import Agent
from perphd.agent.simulated import simulated_sli
from perphd.domain.decision import Action, Decision, Outcome
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import ChangeSet
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

MIN_SECONDS: Final = 60
"""Shorter and there is no time to learn, to be disturbed and to recover."""
_LRA: Final = Lra("mysql", "/demo/mysql", clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
_BATCH: Final = Batch("pi", "/demo/pi", threads=8)
_ARRIVES, _LEAVES = 0.25, 0.70  # of the whole time
_STATUS_S: Final = 10
_KNOBS: Final = (
    *("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.mems"),
    *("memory.min", "memory.low", "memory.high", "memory.max"),
)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What happens when, in virtual seconds."""

    seconds: int
    seed: int

    @property
    def arrives_s(self) -> int:
        return round(self.seconds * _ARRIVES)

    @property
    def leaves_s(self) -> int:
        return round(self.seconds * _LEAVES)

    def host(self, with_batch: bool = True) -> SimHost:
        """A server of 8 cores; whoever set it up gave both groups all of them."""
        events = (Arrival(self.arrives_s, _BATCH.name), Departure(self.leaves_s, _BATCH.name))
        host = SimHost(
            (_LRA, _BATCH) if with_batch else (_LRA,),
            machine=Machine(1, 8),
            events=events if with_batch else (),
            seed=self.seed,
            pmu=True,
        )
        for work in (_LRA, _BATCH) if with_batch else (_LRA,):
            host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", f"{host.machine.online}".encode())
        return host

    def uncontrolled(self, with_batch: bool) -> list[Second]:
        """The scenario with nobody in control."""
        watcher = _Watcher(self.host(with_batch))
        for now_s in range(1, self.seconds + 1):
            watcher.host.advance(now_s)
            watcher.look()
        return watcher.seen


class _Watcher:
    """Records a host once a virtual second, as seen by an onlooker who knows what no daemon can know."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.seen: list[Second] = []
        self._sli, self._done = host.sli(_LRA.name), 0.0

    def look(self) -> Second:
        window = self._sli.read()
        done = self.host.work_done(_BATCH.name) if self.host.has(_BATCH.name) else 0.0
        second = Second(
            at_s=round(self.host.now_s),
            work_per_s=window.work_rate_per_s if window else 0.0,
            p95_ms=(window.p95_ms or 0.0) if window else 0.0,
            batch_work=done - self._done,
        )
        self._done = done
        self.seen.append(second)
        return second


class _Story:
    """Prints what happens, each line with its virtual time."""

    _ORDER: ClassVar = (Outcome, Decision, ChangeSet)  # of one tick: judged, decided, written

    def __init__(self, console: Console) -> None:
        self._console = console
        self._health = ""
        self._waiting: list[Event] = []

    def line(self, at_s: float, word: str, text: str, style: str = "") -> None:
        """One line; ``word`` says what kind of thing it tells."""
        head = Text(f"{at_s:5.0f} s  ", style="dim") + Text(f"{word:<9}", style=style or "dim")
        self._console.print(head + Text(text), soft_wrap=True)

    def event(self, event: Event) -> None:
        """Take one announcement; those of a tick are told when it has ended."""
        if event.kind is not EventKind.TICK:
            self._waiting.append(event)
            return
        for kind in self._ORDER:
            for waiting in self._waiting:
                if isinstance(waiting.detail, kind):
                    self._tell(waiting)
        for waiting in self._waiting:
            if waiting.kind in (EventKind.PROBLEM, EventKind.RESTORE):
                self.line(waiting.at_s, waiting.kind.value, waiting.text, "yellow")
        self._waiting.clear()

    def _tell(self, event: Event) -> None:
        detail = event.detail
        if isinstance(detail, Decision):
            self._decision(detail)
        elif isinstance(detail, ChangeSet):
            for write in detail.writes:
                name = write.path.rpartition("/")[2]
                self.line(
                    event.at_s, "written", f"{write.workload} {name}: {write.before} -> {write.value}", "cyan"
                )
        elif isinstance(detail, Outcome):
            style = "green" if detail.kept else "yellow"
            self.line(event.at_s, "judged", f"{event.workload}: {detail.text}", style)

    def _decision(self, decision: Decision) -> None:
        at_s, health = decision.at_s, decision.verdict.health.value
        acts = decision.action is not Action.HOLD
        if health != self._health:
            self._health = health
            text = f"{decision.workload} is {health}" + ("" if acts else f": {decision.reason}")
            self.line(at_s, "seen", text, "magenta")
        if not acts:
            return
        if decision.action is Action.GROW:
            for evidence in decision.verdict.evidence:
                self.line(at_s, "", f"{evidence.signal}: {evidence.text}")
        self.line(at_s, "decided", f"{decision.action}: {decision.current} -> {decision.chosen}", "bold blue")
        self.line(at_s, "why", decision.reason)


def run_demo(
    seconds: int = 150, seed: int = 1, speed: float | None = 15.0, console: Console | None = None
) -> int:
    """Tell the story; returns the process's exit code.

    Args:
        seconds: virtual time of the scenario, at least ``MIN_SECONDS``.
        seed: of the simulated noise; the same seed tells the same story.
        speed: virtual seconds per second of wall time; None: as fast as it computes.
        console: where to; None: standard output.

    Raises:
        ConfigError: ``seconds`` or ``speed`` is out of range.
    """
    if seconds < MIN_SECONDS:
        raise ConfigError("demo", "seconds", f"{seconds} is too short", f"at least {MIN_SECONDS}")
    if speed is not None and not speed > 0:
        raise ConfigError("demo", "speed", f"{speed} is not a pace", "a number above 0")
    return asyncio.run(_play(_Scene(seconds, seed), speed, console or Console(highlight=False)))


async def _play(scene: _Scene, speed: float | None, console: Console) -> int:
    console.print(
        f"A simulated server of 8 cores runs a database, {_LRA.name}. After {scene.arrives_s} s a batch job, "
        f"{_BATCH.name}, arrives and wants every core; perphd knows nothing of it in advance. "
        f"Times are virtual.\n",
        soft_wrap=True,
    )
    story = _Story(console)
    host = scene.host()
    original = _knobs(host)
    written: set[str] = set()
    host.fs.on_write = lambda path, _: written.add(path)
    watcher = _Watcher(host)
    with tempfile.TemporaryDirectory(prefix="perphd-demo-") as state_dir:
        config = _config(state_dir)
        agent = build_agent(
            config,
            fs=host.fs,
            opener=host.perf_opener,
            sli_opener=simulated_sli(host),
            store=False,
        )
        telling = asyncio.create_task(_tell(agent, story))
        await asyncio.sleep(0)  # let it subscribe
        try:
            await _live(scene, watcher, agent, story, _pauses(speed))
        finally:
            await agent.stop(restore=True)
            await telling
    now = _knobs(host)
    story.line(scene.seconds, "stopped", "perphd has ended and given back whatever it still held")
    compared = Comparison(
        alone=scene.uncontrolled(with_batch=False),
        native=scene.uncontrolled(with_batch=True),
        perphd=watcher.seen,
        from_s=scene.arrives_s,
        to_s=scene.leaves_s,
        tolerance_pct=config.workloads[0].objective.tolerance_pct,
    )
    console.print()
    console.print(compared.table())
    problems = compared.problems()
    problems += [f"{path} was written, which is no knob" for path in sorted(written - original.keys())]
    problems += [
        f"{path} reads {now[path]!r}, not {was!r}" for path, was in original.items() if now[path] != was
    ]
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red", soft_wrap=True)
    if not problems:
        console.print(
            f"{_LRA.name} was back at its target ({compared.target_per_s:.0f}/s: alone less "
            f"{compared.tolerance_pct:.0f} %) {compared.recovery_s(watcher.seen):.0f} s after the job came; in the end "
            f"all {len(written)} kernel files that were written read as before, byte for byte.",
            style="bold green",
            soft_wrap=True,
        )
    return 1 if problems else 0


async def _live(
    scene: _Scene, watcher: _Watcher, agent: Agent, story: _Story, pause_s: Callable[[float], float]
) -> None:
    """Tick for tick to the end of the scenario."""
    for now_s in range(1, scene.seconds + 1):
        watcher.host.advance(now_s)
        second = watcher.look()
        if now_s == scene.arrives_s + 1:
            text = f"batch job {_BATCH.name}: {_BATCH.threads} threads that compute without end"
            story.line(scene.arrives_s, "arrives", text, "red")
        elif now_s == scene.leaves_s + 1:
            story.line(scene.leaves_s, "leaves", f"batch job {_BATCH.name}", "red")
        if now_s % _STATUS_S == 0:
            text = f"{_LRA.name} answers {second.work_per_s:.0f}/s, p95 {second.p95_ms:.1f} ms"
            if watcher.host.running(_BATCH.name):
                text += f"; {_BATCH.name} gets the work of {second.batch_work:.1f} cores done"
            story.line(now_s, "", text)
        await agent.tick(float(now_s))
        await asyncio.sleep(pause_s(now_s))


async def _tell(agent: Agent, story: _Story) -> None:
    async for event in agent.subscribe():
        story.event(event)


def _pauses(speed: float | None) -> Callable[[float], float]:
    """How long to sleep at a virtual time, so that a person can follow."""
    if speed is None:
        return lambda _: 0.0
    began = time.monotonic()
    return lambda now_s: max(0.0, began + now_s / speed - time.monotonic())


def _config(state_dir: str) -> Config:
    sli = SliSpec("simulated", (("workload", _LRA.name),))
    return Config(
        daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=state_dir),
        store=StoreConfig(enabled=False),
        workloads=(
            WorkloadSpec(_LRA.name, Kind.LRA, _LRA.cgroup, sli=sli),
            WorkloadSpec(_BATCH.name, Kind.BATCH, _BATCH.cgroup),
        ),
    )


def _knobs(host: SimHost) -> dict[str, bytes]:
    """Every file that could have been written, as it reads now."""
    found: dict[str, bytes] = {}
    for work in (_LRA, _BATCH):
        for knob in _KNOBS:
            path = f"{CGROUP_ROOT}{work.cgroup}/{knob}"
            try:
                found[path] = host.fs.read(path)
            except KernelError as exc:
                found[path] = str(exc).encode()
    return found
