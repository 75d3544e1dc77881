"""Time from detection to the last write: a real agent whose decision is replaced at every tick, on real groups.

Each tick samples, learns and decides as usual; the decision is then replaced by a change of batch's resources, so that
every tick ends in a transaction. The time is measured from the beginning of the decision (detection) until the last
write is read back, including the journal's fsync.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from perphd.agent.upkeep import spare_the_start
from perphd.domain.allocation import IDLE, Settings
from perphd.domain.policy import Snapshot, TargetState
from perphd.domain.workload import Kind
from tools.bench.groups import BenchError, BenchGroups
from tools.bench.scene import STATE_BELOW, DiskMeter, Phases, Scene, cpu_wait_s, daemon_priority

SETTLE_TICKS = 5


@dataclass(frozen=True, slots=True)
class Reaction:
    """Milliseconds over all changes at one number of workloads. ``writes``: average number of kernel writes per change.

    ``own_p99_ms``: without waits for a CPU or for the disk (fsync), which depend on the machine.
    ``from_tick_p99_ms`` includes sampling; the last three show the parts of the time.
    """

    workloads: int
    changes: int
    writes: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    own_p99_ms: float
    from_tick_p99_ms: float
    decide_p50_ms: float
    plan_p50_ms: float
    apply_p50_ms: float

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


class _Turning:
    """Lets a policy decide, then returns a target that differs from the last one.

    Three states alternate, so that demotion, confinement and restoring all occur.
    """

    def __init__(self, decide: Callable[[Snapshot], TargetState]) -> None:
        self._decide = decide
        self._round = 0

    def decide(self, snapshot: Snapshot) -> TargetState:
        decided = self._decide(snapshot)
        self._round += 1
        last = snapshot.host.topology.usable_cores[-1]
        states: tuple[Settings | None, ...] = (
            Settings(cpu_weight=10),
            Settings(cpu_weight=IDLE, cpus=last.cpus),
            None,
        )
        state = states[self._round % len(states)]
        batch = [view.spec.name for view in snapshot.workloads if view.spec.kind is Kind.BATCH]
        settings: Mapping[str, Settings] = {} if state is None else dict.fromkeys(batch, state)
        return replace(decided, settings=settings)


async def measure(workloads: int, changes: int) -> Reaction:
    """Force a number of changes with a number of workloads.

    Raises:
        BenchError: the groups cannot be made, or a change was not applied.
    """
    with (
        BenchGroups(workloads, occupied=workloads) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as state,
    ):
        scene = Scene(groups.paths, Path(state))
        try:
            with daemon_priority(), DiskMeter().installed() as disk:
                return await _measure(scene, disk, workloads, changes)
        finally:
            await scene.close()


async def _measure(scene: Scene, disk: DiskMeter, workloads: int, changes: int) -> Reaction:
    for _ in range(SETTLE_TICKS):
        await scene.tick()
    spare_the_start()  # as the daemon does
    agent, policy = scene.agent, cast(Any, scene.parts.policy)
    policy.decide = _Turning(policy.decide).decide
    scene.stopwatch.attach(agent, scene.parts)
    written = _Counter(scene.parts.executor)
    from_decision: list[float] = []
    from_tick: list[float] = []
    own: list[float] = []
    all_phases: list[Phases] = []
    for number in range(changes):
        waited_before = cpu_wait_s() + disk.seconds
        began = time.perf_counter()
        phases = await scene.tick()
        waited = cpu_wait_s() + disk.seconds - waited_before
        if phases.ended_at is None:
            raise BenchError(
                f"change {number + 1} of {changes}: nothing was written; {agent.status().problems}"
            )
        from_decision.append(1000.0 * (phases.ended_at - phases.deciding_at))
        own.append(max(0.0, from_decision[-1] - 1000.0 * waited))
        from_tick.append(1000.0 * (phases.ended_at - began))
        all_phases.append(phases)
    return Reaction(
        workloads=workloads,
        changes=changes,
        writes=written.writes / changes,
        p50_ms=_quantile(from_decision, 0.50),
        p99_ms=_quantile(from_decision, 0.99),
        max_ms=max(from_decision),
        own_p99_ms=_quantile(own, 0.99),
        from_tick_p99_ms=_quantile(from_tick, 0.99),
        decide_p50_ms=_quantile([1000.0 * phases.decide for phases in all_phases], 0.50),
        plan_p50_ms=_quantile([1000.0 * phases.plan for phases in all_phases], 0.50),
        apply_p50_ms=_quantile([1000.0 * phases.apply for phases in all_phases], 0.50),
    )


class _Counter:
    """Counts the kernel writes of an executor, and fails on the first change that was undone."""

    def __init__(self, executor: Any) -> None:
        self.writes = 0
        inner = executor.apply

        async def apply(changes: Any, **options: Any) -> Any:
            applied = await inner(changes, **options)
            if not applied.ok:
                raise BenchError(f"a change could not be applied: {applied.failed}")
            self.writes += len(applied.written)
            return applied

        executor.apply = apply


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
