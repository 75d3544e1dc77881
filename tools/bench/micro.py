"""pyperf benchmarks of one tick, whole and by phase. Started by ``tools.bench``, which makes the groups.

python -m tools.bench.micro --inherit-environ=PERPHD_BENCH_GROUPS,... -o out.json
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyperf

from tools.bench.scene import STATE_BELOW, Phases, Scene

GROUPS = "PERPHD_BENCH_GROUPS"
"""Environment: paths of the groups, separated by colons."""
SIZES = "PERPHD_BENCH_SIZES"
"""Environment: numbers of workloads to measure, separated by commas."""
PHASES: dict[str, Callable[[Phases], float]] = {
    "sampling": lambda phases: phases.sampling,
    "model": lambda phases: phases.model,
    "decide": lambda phases: phases.decide,
    "plan": lambda phases: phases.plan,
}
_SETTLE_TICKS = 20
"""Uncounted ticks at the start, in which files are opened and references learned."""


def name_of(size: int, phase: str = "") -> str:
    """A benchmark's name in pyperf's files."""
    return f"tick of {size}: {phase or 'whole'}"


class _Bench:
    """Ticks of one agent, created at the first call, because pyperf runs each benchmark in separate processes."""

    def __init__(self, paths: list[str], phase: Callable[[Phases], float] | None) -> None:
        self._paths, self._phase = paths, phase
        self._runner: asyncio.Runner | None = None
        self._scene: Scene | None = None

    def __call__(self, loops: int) -> float:
        """Seconds taken by this number of ticks, or by one phase of them."""
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._runner.run(self._begin())
        return self._runner.run(self._ticks(loops))

    async def _begin(self) -> None:
        self._state = tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW)
        self._scene = Scene(self._paths, Path(self._state.name))
        for _ in range(_SETTLE_TICKS):
            await self._scene.tick()
        if self._phase is not None:
            self._scene.stopwatch.attach(self._scene.agent, self._scene.parts)

    async def _ticks(self, loops: int) -> float:
        assert self._scene is not None
        spent = 0.0
        for _ in range(loops):
            began = time.perf_counter()
            phases = await self._scene.tick()
            spent += time.perf_counter() - began if self._phase is None else self._phase(phases)
        return spent

    def close(self) -> None:
        """Close the agent, if this process created it."""
        if self._runner is None:
            return
        if self._scene is not None:
            self._runner.run(self._scene.close())
        self._runner.close()
        self._state.cleanup()


def main() -> None:
    """Run all benchmarks according to pyperf's command line."""
    paths = os.environ[GROUPS].split(":")
    runner = pyperf.Runner()
    benches: list[_Bench] = []
    for size in (int(text) for text in os.environ[SIZES].split(",")):
        for phase, pick in {"": None, **PHASES}.items():
            benches.append(_Bench(paths[:size], pick))
            runner.bench_time_func(name_of(size, phase), benches[-1])
    for bench in benches:
        bench.close()


if __name__ == "__main__":
    main()
