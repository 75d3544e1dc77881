"""A fake agent for the control API's tests, and a server around it in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.agent.forecasts import FORECASTS_OFF
from perphd.agent.queue.batch_queue import BatchQueue
from perphd.agent.rounds import Round
from perphd.agent.tally import Tally
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.access import Access, Peer
from perphd.control.limits import ApiLimits
from perphd.control.routes import Hooks
from perphd.control.server import ControlServer
from perphd.domain.allocation import IDLE, UNTOUCHED, Allocation, CpuGrant, Settings
from perphd.domain.belief import (
    AllocationBelief,
    ModelOrigin,
    ModelSummary,
    ModelView,
    OriginHost,
    OriginLeftOut,
    ReferenceBelief,
    SkippedSamples,
)
from perphd.domain.capability import Area, Capabilities, Capability
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import (
    Action,
    Candidate,
    Cause,
    Consequences,
    Decision,
    Evidence,
    Health,
    Outcome,
    Prediction,
    Verdict,
)
from perphd.domain.errors import ConfigError
from perphd.domain.event import Event, EventKind
from perphd.domain.plan import NotEnforceable
from perphd.domain.policy import Band, HostView, ModelContext, Snapshot, WorkloadView
from perphd.domain.reading import Unavailable
from perphd.domain.sample import Sample
from perphd.domain.status import AgentStatus, SelfCost, WorkloadStatus
from perphd.domain.suggestion import Gain, Suggestion
from perphd.domain.topology import Core, L3Domain, NumaNode, Topology
from perphd.domain.whatif import Arrival, Effect, WhatIf
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.isolation.restore_report import FileReport, RestoreReport
from perphd.monitor.sli import SliReading
from perphd.predictor import LraModel
from perphd.predictor.persist import ModelFile, Provenance, from_text, to_text
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShapedWorkload, ShaperView
from perphd.trial.design import Metric, Plan, Request, Signal, schedule
from perphd.trial.record import End, Ending, TrialRecord

DB = WorkloadSpec("db", Kind.LRA, "/app/db", sli=SliSpec("push", (("max_age_s", "5"),)))
CACHE = WorkloadSpec("cache", Kind.LRA, "/app/cache", mode=Mode.OBSERVE)
PI = WorkloadSpec("pi", Kind.BATCH, "/batch/pi")
FREE = CpuGrant(4, 4)
TIGHT = CpuGrant(4, 2, batch_weight=20)

TOPOLOGY = Topology(
    cores=tuple(Core(0, core, CpuSet.of([core, core + 4])) for core in range(4)),
    l3_domains=(L3Domain(0, CpuSet.of(range(8)), 16 << 20),),
    nodes=(NumaNode(0, CpuSet.of(range(8)), 32 << 30),),
    online=CpuSet.of(range(8)),
    memory_bytes=32 << 30,
)
CAPABILITIES = Capabilities(
    (
        Capability("psi", Area.MEASURE, True, "pressure of CPU, memory and I/O per cgroup"),
        Capability(
            "pmu",
            Area.MEASURE,
            False,
            "perf_event_open: ENOENT",
            "no MIPS, no CPI: work is counted by the application's SLI or by CPU time",
            "run on bare metal, or give the VM a virtual PMU",
        ),
        Capability("cpu.weight", Area.ENFORCE, True, "cgroup v1 cpu.shares"),
    )
)


def decision(at_s: float, action: Action = Action.GROW) -> Decision:
    evidence = (
        Evidence("work (sli)", 812.0, 1206.0, "/s", "33% below the target"),
        Evidence("cpu pressure", 41.5, Unavailable("not learned yet"), "%", "it waits for CPUs"),
    )
    return Decision(
        at_s=at_s,
        workload="db",
        verdict=Verdict(Health.DEGRADED, Cause.CPU, at_s - 3.0, evidence, culprit="pi"),
        action=action,
        target_work=1206.0,
        target_delay=Unavailable("no latency"),
        current=Allocation(FREE),
        chosen=Allocation(TIGHT) if action is Action.GROW else Allocation(FREE),
        candidates=(
            Candidate(Allocation(FREE), Prediction(0.67, 0.6, 0.75, 20.0), 0.0, "misses the target"),
            Candidate(
                Allocation(TIGHT), Prediction(1.04, 1.0, 1.08, 12.0), 1.6, "meets it at the lowest price"
            ),
        ),
        reason="batch on 2 of 4 cores at weight 20 is the cheapest that meets the target",
        policy="perph",
    )


def put_on_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LRA is on target from now on. While it is below, copper is offered nothing more than it uses."""
    degraded = decision

    def healthy(at_s: float, action: Action = Action.GROW) -> Decision:
        made = degraded(at_s, action)
        return replace(made, verdict=replace(made.verdict, health=Health.HEALTHY, cause=Cause.NONE))

    monkeypatch.setitem(globals(), "decision", healthy)


MODEL: dict[str, Any] = json.loads(
    to_text(
        ModelFile(Provenance("db", "/app/db", "push", "node1", 4, "1.2.3", 1e6), (), LraModel().to_state())
    )
)
SUMMARY = ModelSummary("db", 4711, 3, True, "learned here", 42.0)
VIEW = ModelView(
    SUMMARY,
    (
        ReferenceBelief("work:sli", Unavailable("over all loads"), 1206.0, 1150.0, 1260.0, 60.0),
        ReferenceBelief("work:sli", 1024.0, 1011.0, 990.0, 1030.0, 12.5),
        ReferenceBelief("cpu_some_pct", Unavailable("over all loads"), 0.0, 0.0, 1.2, 60.0),
    ),
    ModelContext(2.3, 4.0, 4.0),
    1.0,
    Allocation(FREE),
    (
        AllocationBelief(
            Allocation(FREE), Band(0.62, 0.05, 18.0), Band(1.9, 0.2, 18.0), Band(3.1, 0.1, 18.0)
        ),
        AllocationBelief(Allocation(TIGHT), Band(0.97, 0.2, 0.0), Band(1.1, 0.4, 0.0), Band(1.8, 0.3, 0.0)),
    ),
    (SkippedSamples("settling", 12),),
)


class FakeAgent:
    """Satisfies AgentPort; remembers what was asked of it in ``calls``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.capabilities = CAPABILITIES
        self.tally = Tally(time.time)
        self.topology = TOPOLOGY
        self.queue: BatchQueue | None = None
        self.devices: tuple[ContendedDevice, ...] = ()
        self.calls: list[tuple[Any, ...]] = []
        self.specs: dict[str, WorkloadSpec] = {spec.name: spec for spec in (DB, CACHE, PI)}
        self.declared: tuple[WorkloadSpec, ...] = ()
        self.mode = Mode.ENFORCE
        self.refuse: Exception | None = None
        self.pauses: tuple[Pause, ...] = ()
        self.published: bytes | Unavailable = Unavailable(FORECASTS_OFF)
        self.by: Actor | None = None
        self.record: TrialRecord | None = None
        self.subscribers: set[asyncio.Queue[Event]] = set()
        self.recorded: list[Round] = []
        self.fits = ["cache"]
        self.band_lines: tuple[str, ...] = ()
        self.restored = RestoreReport(restored=(FileReport("/sys/x", "pi", "cpus", "0-7", "0-1", "0-7"),))

    def status(self) -> AgentStatus:
        workloads = tuple(self._workload(spec) for spec in self.specs.values())
        cost = SelfCost(0.43, 61.5 * (1 << 20), 118.0, 1.21, 3.4, Unavailable("nothing written yet"), 0)
        return AgentStatus(
            "1.2.3",
            self.mode,
            "perph",
            1.0,
            0.25,
            "pi has come",
            7423,
            12,
            7423.4,
            workloads,
            3,
            cost,
            ("the store was damaged",),
        )

    def suggestions(self) -> tuple[Suggestion, ...]:
        gain = Gain("db", 90.0, 1.4, 0.5)
        lines = '[[batch]]\nname = "backup"\nmatch = "unit:backup.service"\n'
        text = "uses 1.5 CPUs and slowed db: as batch it could be held back"
        return (Suggestion("/system.slice/backup.service", 1.5, 3600.0, (gain,), lines, text),)

    def whatif(self, arrival: Arrival) -> WhatIf:
        bearable = arrival.cpu_cores <= 4
        text = "db keeps its target" if bearable else "db would keep its target only with a chance of 20%"
        tight = Prediction(1.04, 1.0, 1.08, 12.0)
        effect = Effect(
            "db", Health.HEALTHY, tight, tight, Allocation(TIGHT), 0.9, bearable=bearable, text=text
        )
        return WhatIf(bearable, (text,), (effect,), 2.0)

    def snapshot(self) -> Snapshot:
        views = tuple(WorkloadView(each.spec, each.sample) for each in self.status().workloads)
        return Snapshot(7423, 120.0, 1.0, HostView(TOPOLOGY), views)

    def shaper(self) -> ShaperView:
        row = ShapedWorkload(
            "pi", "elastic", "pi", True, 4.0 * 2**30, 1.5 * 2**30, 2.0 * 2**30, "forecast and buffer"
        )
        return ShaperView(
            "pessimistic", 60.0, 8.0 * 2**30, 6.0 * 2**30, (row,), ("pi: 4096 MiB -> 2048 MiB",)
        )

    def memory_fits(self) -> tuple[FitView, ...]:
        good = 2.0 * 2**30
        return tuple(
            FitView(
                name, "search", 3, 12, 60, int(good), good, None, None, 1.9 * 2**30, 0, "mips", False, "good"
            )
            for name in self.fits
        )

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        if name in self.fits:
            raise ConfigError("request", "workload", f"a search for {name} is under way", "memfit stop")
        self.fits.append(name)

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        if name not in self.fits:
            raise ConfigError("request", "workload", f"no search was started for {name}", "memfit start")
        return 2 << 30

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        self.apply_memory_fit(name)
        self.fits.remove(name)

    async def oom_order(self) -> tuple[str, ...]:
        return ()

    def bands(self) -> tuple[str, ...]:
        return self.band_lines

    def contended(self) -> tuple[ContendedDevice, ...]:
        return self.devices

    def forecasts(self) -> bytes | Unavailable:
        return self.published

    def models(self) -> tuple[ModelSummary, ...]:
        return (SUMMARY,)

    def model_view(self, lra: str) -> ModelView:
        return VIEW

    def model_origin(self, workload: str) -> ModelOrigin:
        return ModelOrigin(
            workload, "began from 3 other hosts", "kept", 1e9, 190,
            (OriginHost("node-1", 7, 60.0, 0.5, "8.0", 0.4),), (OriginLeftOut("node-2", "expired"),),
        )  # fmt: skip

    def export_model(self, lra: str) -> str:
        return json.dumps(MODEL)

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        file = from_text(text)
        self._call("import_model", lra, file, rename)
        return (f"it was learned on {file.provenance.host}",)

    async def reset_model(self, lra: str) -> None:
        self._call("reset_model", lra)

    def _workload(self, spec: WorkloadSpec) -> WorkloadStatus:
        made = decision(100.0) if spec.name == "db" else None
        sample = Sample(
            spec.name,
            120.0,
            1.0,
            cpu_usage_cores=2.31,
            memory_current_bytes=3.2 * (1 << 30),
            cpu_some_pct=41.5,
            read_bytes_per_s=1e6,
            write_bytes_per_s=2e5,
            run_delay_cores=0.8,
            work_rate_per_s=812.4 if spec.name == "db" else Unavailable("no SLI is configured"),
        )
        present = spec.name != "cache"
        outcome = Outcome(99.0, "db", 90.0, 0.7, 1.02, True, "the score rose from 0.70 to 1.02: kept")
        weight = Settings(cpus=CpuSet.of(range(4)), cpu_weight=IDLE, memory_high_bytes=2 << 30)
        return WorkloadStatus(
            spec=spec,
            present=present,
            mode=spec.mode if spec.mode is not None else self.mode,
            sample=sample if present else None,
            decision=made,
            outcome=outcome if made else None,
            would=made,
            protection=made.chosen if made else None,
            in_force=weight if spec.kind is Kind.BATCH else UNTOUCHED,
            not_enforceable=(NotEnforceable("pi", "cpu_weight", "no cpu controller"),)
            if spec.name == "pi"
            else (),
            problem="" if present else f"waiting for cgroup {spec.cgroup}",
            limited=(NotEnforceable("pi", "memory_high_bytes", "it works with 3 GiB"),)
            if spec.name == "pi"
            else (),
        )

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        self.calls.append(("decisions", workload, at_s, limit))
        return (decision(100.0), decision(90.0, Action.HOLD))[:limit] if workload == "db" else ()

    def consequences(self, decision: Decision) -> Consequences:
        outcome = Outcome(
            decision.at_s + 3.0, "db", decision.at_s, 0.7, 1.02, True, "score 0.70 -> 1.02: it helped"
        )
        made = decision.action is not Action.HOLD
        return (
            Consequences(decision.at_s, ("/cg/pi/cpu.idle: '0' -> '1'",), "written", outcome)
            if made
            else Consequences(0.0)
        )

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> None:
        self._call("set_mode", mode, workload)
        if workload is None:
            self.mode = mode

    async def add_workload(self, spec: WorkloadSpec, by: Actor | None = None) -> None:
        self._call("add_workload", spec)
        self.specs[spec.name] = spec

    async def remove_workload(self, name: str, by: Actor | None = None) -> None:
        self._call("remove_workload", name)
        self.declared = tuple(spec for spec in self.declared if spec.name != name)
        self.specs = {one: spec for one, spec in self.specs.items() if one.partition(".")[0] != name}

    def push_sli(self, workload: str, reading: SliReading) -> None:
        self._call("push_sli", workload, reading)

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> tuple[Pause, RestoreReport]:
        self._call("pause", workload, for_s, reason)
        self.by = by
        until = None if for_s is None else 1000.0 + for_s
        self.pauses = (Pause(workload or "", 1000.0, until, reason, str(by)),)
        return self.pauses[0], RestoreReport()

    async def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        self._call("start_trial", request)
        self.by = by
        seed = 7 if request.seed is None else request.seed
        metrics = (Metric(Signal.DELAY, "db", "latency_p95_ms"), Metric(Signal.BATCH, "", "cpu"))
        plan = Plan(
            "20260101T000000Z", 1e9, request.block_s, request.washout, seed, schedule(request.pairs, seed), metrics,
            ("cache",), request.bound_pct, "perph", "1.2.3", str(by),
        )  # fmt: skip
        self.record = TrialRecord(plan)
        return self.record

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        if self.record is None or self.record.ending is not None:
            raise ConfigError("request", "trial", "no trial is running", "perphctl trial start begins one")
        self.record = replace(self.record, ending=Ending(2e9, End.STOPPED, "stopped by hand", str(by)))
        return self.record

    def trial(self) -> TrialRecord | None:
        return self.record

    async def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        self._call("resume", workload)
        ended, self.pauses = self.pauses, ()
        return ended

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> RestoreReport:
        self._call("restore", ignore_lock)
        return self.restored

    async def subscribe(self) -> AsyncIterator[Event]:
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self.subscribers.add(queue)
        try:
            yield Event(100.0, EventKind.DECISION, "grow", "db", decision(100.0))
            yield Event(101.0, EventKind.TICK, "tick 1")
            while True:
                yield await queue.get()
        finally:
            self.subscribers.discard(queue)

    async def rounds(self) -> AsyncIterator[Round]:
        for item in self.recorded:
            yield item

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refuse is not None:
            raise self.refuse


ROOT = Peer(1, 0, frozenset({0}), 0)
OWNER = Peer(1, 400, frozenset({400}), 400)
ADMIN = Peer(2, 1001, frozenset({1001, 502}), 1001)
READER = Peer(3, 1002, frozenset({1002, 501}), 1002)
SUBMITTER = Peer(5, 1004, frozenset({1004, 501, 503}), 1004)
STRANGER = Peer(4, 1003, frozenset({1003}))
ACCESS = Access(
    "perphd", "perphd-admin", read_gid=501, admin_gid=502, owner_uid=400, submit_group="batch", submit_gid=503
)


class Served:
    """A server around a fake agent. ``peer`` is who every connection is taken for."""

    def __init__(self, directory: Path, limits: ApiLimits) -> None:
        self.socket = str(directory / "perphd.sock")
        self.config = Config(
            daemon=DaemonConfig(socket=self.socket, state_dir=str(directory)),
            store=StoreConfig(path=str(directory / "perphd.db")),
            workloads=(DB, CACHE, PI),
            sources=(str(directory / "perphd.toml"),),
        )
        self.agent = FakeAgent(self.config)
        self.peer = ROOT
        self.own = "/system/perphd"
        self.reloads: list[Config | Exception] = []
        hooks = Hooks(self._check_host, monotonic=lambda: 130.0, wall=lambda: 1_000_130.0)
        self.server = ControlServer(
            self.agent,
            self.config,
            reload=self._reload,
            hooks=hooks,
            limits=limits,
            peer_lookup=lambda _: self.peer,
            access=ACCESS,
        )

    def _check_host(self, specs: Any) -> list[str]:
        for spec in specs:
            if spec.cgroup == self.own:
                raise ConfigError("the request", "cgroup", f"{spec.cgroup!r} contains perphd itself")
        return [f"{spec.name} is waited for" for spec in specs if spec.cgroup.startswith("/absent")]

    async def _reload(self, by: Actor) -> Config:
        answer = self.reloads.pop(0) if self.reloads else replace(self.config, warnings=("odd",))
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def serving(directory: Path, limits: ApiLimits | None = None) -> Iterator[Served]:
    """A server that runs in a thread until the block ends."""
    served = Served(directory, limits if limits is not None else ApiLimits(heartbeat_s=0.05, shutdown_s=0.5))
    ready, loop = threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def live() -> None:
        await served.server.start()
        ready.set()
        await end.wait()
        await served.server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not ready.wait(0.05):
            assert thread.is_alive(), "the server did not start"
            assert time.monotonic() < deadline
        yield served
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(10)
        loop.close()
