"""``perphd demo``: the whole loop on a simulated host, printed line by line. It needs no root and changes nothing.

The same scenario runs three times in virtual time: a database alone, the database beside two successive batch
jobs without control, and the same with perphd. The first job wants every core; the second streams through
memory, and takes cache and bandwidth as well. The exit code is 0 only if perphd brought the database back to
its target beside each of them, and restored every kernel file.
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

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.demo_report import Comparison, Second
from perphd.agent.simulated import simulated_sli
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.decision import Action, Decision, Outcome
from perphd.domain.errors import ConfigError, KernelError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import ChangeSet
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.sim.host import Arrival, Departure, SimHost
from perphd.sim.kernel.resctrl import MOUNT_POINT
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Placed, placed

MIN_SECONDS: Final = 120
"""Length in seconds of the shortest scenario in which perphd can learn, be disturbed twice, and recover."""
_CORES: Final = 16
_LRA: Final = placed("mysql-short", "/demo/mysql", "mysql")
_PI: Final = placed("batch-pi", "/demo/pi", "pi")
_STREAM: Final = placed("batch-stream", "/demo/stream", "stream")
_ALL: Final = (_LRA, _PI, _STREAM)
_STATUS_S: Final = 10
_KNOBS: Final = (
    *("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.mems"),
    *("memory.min", "memory.low", "memory.high", "memory.max"),
)


@dataclass(frozen=True, slots=True)
class _Act:
    """One batch job's run; ``arrives`` and ``leaves`` in shares of the whole time."""

    job: Placed
    arrives: float
    leaves: float
    text: str


_ACTS: Final = (
    _Act(_PI, 0.16, 0.46, "computes endlessly on as many threads as there are cores"),
    _Act(_STREAM, 0.65, 0.93, "streams through memory on as many threads: takes cache and bandwidth as well"),
)


@dataclass(frozen=True, slots=True)
class _DemoHost:
    """The demo's scenario, in virtual seconds."""

    seconds: int
    seed: int

    def at_s(self, share: float) -> int:
        """The time in seconds at this share of the scenario."""
        return round(self.seconds * share)

    def host(self, with_batch: bool = True) -> SimHost:
        """A server with 16 cores and resctrl, on which all groups may use all cores."""
        works = _ALL if with_batch else (_LRA,)
        events: list[Arrival | Departure] = []
        for act in _ACTS if with_batch else ():
            events += [
                Arrival(self.at_s(act.arrives), act.job.name),
                Departure(self.at_s(act.leaves), act.job.name),
            ]
        host = SimHost(
            works, machine=Machine(1, _CORES), events=events, seed=self.seed, pmu=True, resctrl=True
        )
        for work in works:
            host.fs.write(f"{CGROUP_ROOT}{work.cgroup}/cpuset.cpus", f"{host.machine.online}".encode())
        return host

    def uncontrolled(self, with_batch: bool) -> list[Second]:
        """The scenario without control."""
        watcher = _Watcher(self.host(with_batch))
        for now_s in range(1, self.seconds + 1):
            watcher.host.advance(now_s)
            watcher.look()
        return watcher.seen


class _Watcher:
    """Records a host once per virtual second, including values that a daemon cannot measure."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.seen: list[Second] = []
        self._sli = host.sli(_LRA.name)
        self._jobs = [act.job.name for act in _ACTS if host.has(act.job.name)]
        self._done = 0.0

    def look(self) -> Second:
        window = self._sli.read()
        done = sum(self.host.work_done(name) for name in self._jobs)
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
    """Prints events, each with its virtual time."""

    _ORDER: ClassVar = (Outcome, Decision, ChangeSet)  # order in which one tick creates them

    def __init__(self, console: Console) -> None:
        self._console = console
        self._health = ""
        self._waiting: list[Event] = []

    def line(self, at_s: float, word: str, text: str, style: str = "") -> None:
        """Print one line; ``word`` names its kind."""
        head = Text(f"{at_s:5.0f} s  ", style="dim") + Text(f"{word:<9}", style=style or "dim")
        self._console.print(head + Text(text), soft_wrap=True)

    def event(self, event: Event) -> None:
        """Receive one event; the demo prints a tick's events at the end of the tick."""
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
                before, value = (" ".join(text.split()) for text in (write.before, write.value))
                self.line(event.at_s, "written", f"{write.workload} {name}: {before} -> {value}", "cyan")
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
    seconds: int = 180, seed: int = 1, speed: float | None = 15.0, console: Console | None = None
) -> int:
    """Run the demo. Returns the process's exit code.

    Args:
        seconds: virtual time of the scenario, at least ``MIN_SECONDS``.
        seed: seed of the simulated noise; equal seeds print equal lines.
        speed: virtual seconds per second of wall time; None: as fast as it computes.
        console: the output; None: standard output.

    Raises:
        ConfigError: ``seconds`` or ``speed`` is out of range.
    """
    if seconds < MIN_SECONDS:
        raise ConfigError("demo", "seconds", f"{seconds} is too short", f"at least {MIN_SECONDS}")
    if speed is not None and not speed > 0:
        raise ConfigError("demo", "speed", f"{speed} is not a speed", "a number above 0")
    return asyncio.run(_play(_DemoHost(seconds, seed), speed, console or Console(highlight=False)))


async def _play(demo: _DemoHost, speed: float | None, console: Console) -> int:
    console.print(
        f"A simulated server of {_CORES} cores runs a database, {_LRA.name}. Two batch jobs come and go, one after the "
        f"other: {_PI.name} wants every core, {_STREAM.name} takes cache and memory bandwidth as well. perphd knows "
        f"nothing of them in advance. Times are virtual.\n",
        soft_wrap=True,
    )
    story = _Story(console)
    host = demo.host()
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
        await asyncio.sleep(0)  # let the story's task subscribe
        try:
            await _live(demo, watcher, agent, story, _pauses(speed))
        finally:
            await agent.stop(restore=True)
            await telling
    now = _knobs(host)
    story.line(demo.seconds, "stopped", "perphd has ended and restored all remaining changes")
    alone, native = demo.uncontrolled(with_batch=False), demo.uncontrolled(with_batch=True)
    tolerance_pct = config.workloads[0].objective.tolerance_pct
    problems: list[str] = []
    recovered: list[str] = []
    for act in _ACTS:
        from_s, to_s = demo.at_s(act.arrives), demo.at_s(act.leaves)
        compared = Comparison(alone, native, watcher.seen, from_s, to_s, tolerance_pct, act.job.name)
        console.print()
        console.print(compared.table())
        problems += compared.problems()
        if (recovery_s := compared.recovery_s(watcher.seen)) is not None:
            recovered.append(f"{recovery_s:.0f} s after {act.job.name} arrived")
    console.print()
    if groups := _groups(host):
        problems.append(f"groups left in resctrl: {', '.join(groups)}")
    strange = sorted(path for path in written - original.keys() if not path.startswith(MOUNT_POINT))
    problems += [f"{path} was written, although perphd may not write it" for path in strange]
    problems += [
        f"{path} reads {now[path]!r}, not {was!r}" for path, was in original.items() if now[path] != was
    ]
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red", soft_wrap=True)
    if not problems:
        console.print(
            f"{_LRA.name} was back at its target (alone less {tolerance_pct:.0f} %) {' and '.join(recovered)}; in the "
            f"end all {len(written & original.keys())} kernel files that were written read as before, byte for byte, "
            f"and no resctrl group is left.",
            style="bold green",
            soft_wrap=True,
        )
    return 1 if problems else 0


async def _live(
    demo: _DemoHost, watcher: _Watcher, agent: Agent, story: _Story, pause_s: Callable[[float], float]
) -> None:
    """Run the scenario to its end, tick by tick."""
    for now_s in range(1, demo.seconds + 1):
        watcher.host.advance(now_s)
        second = watcher.look()
        for act in _ACTS:
            if now_s == demo.at_s(act.arrives) + 1:
                story.line(now_s - 1, "arrives", f"batch job {act.job.name}: {act.text}", "red")
            elif now_s == demo.at_s(act.leaves) + 1:
                story.line(now_s - 1, "leaves", f"batch job {act.job.name}", "red")
        if now_s % _STATUS_S == 0:
            text = f"{_LRA.name} answers {second.work_per_s:.0f}/s, p95 {second.p95_ms:.1f} ms"
            story.line(now_s, "", text)
        await agent.tick(float(now_s))
        await asyncio.sleep(pause_s(now_s))


async def _tell(agent: Agent, story: _Story) -> None:
    async for event in agent.subscribe():
        story.event(event)


def _pauses(speed: float | None) -> Callable[[float], float]:
    """A function that returns the seconds to sleep at a virtual time, so that a person can follow the demo."""
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
            *(WorkloadSpec(act.job.name, Kind.BATCH, act.job.cgroup) for act in _ACTS),
        ),
    )


def _knobs(host: SimHost) -> dict[str, bytes]:
    """The present content of every control group file that perphd may write."""
    found: dict[str, bytes] = {}
    for work in _ALL:
        for knob in _KNOBS:
            path = f"{CGROUP_ROOT}{work.cgroup}/{knob}"
            try:
                found[path] = host.fs.read(path)
            except KernelError as exc:
                found[path] = str(exc).encode()
    return found


def _groups(host: SimHost) -> list[str]:
    """The existing resctrl groups, without the kernel's own directories."""
    own = {"info", "mon_data", "mon_groups"}
    return [name for name in host.fs.subdirectories(MOUNT_POINT) if name not in own]
