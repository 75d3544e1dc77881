"""Cost of forecasts and sizing with 100 workloads: the worker, the loop's tick, the processes' memory.

- The worker: its cycles, one after another, on a store of 12 h that grows by a minute per cycle, one sample a second;
  five series of each workload, of the generated families. Measured is the CPU time per minute, since a cycle represents
  a minute.
- The tick: an agent on the bench's own control groups (root), in virtual time, with a reservation and a shape on
  every workload, the shaper pessimistic, and memory fits under way on some. The groups' processes sleep; their samples
  are given memory that moves every second, with the window maxima of the generated families, so that targets are
  outgrown as well. A substitute for the worker replaces the file of forecasts once a minute. The result is the CPU time
  of the loop that forecast and sizing together take of a tick, from the end of the shaper's grace on.
- The processes: a daemon on these groups, with and without forecasts and shaper (root), for some minutes of real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.forecasts import ForecastProcess
from perphd.agent.parts import Parts
from perphd.agent.upkeep import collecting_later, spare_the_start
from perphd.config.file import parse
from perphd.control.forecast_worker import ForecastWorker, Listed
from perphd.domain.forecast import MEMORY_FILE
from perphd.domain.quick import changer
from perphd.domain.sample import Sample
from perphd.forecast.histogram import Floats
from perphd.monitor.schema import open_database
from perphd.monitor.windows import SERIES, WINDOW_S
from tools.bench.forecasts import families
from tools.bench.forecasts.history import undisturbed
from tools.bench.groups import BenchError, BenchGroups
from tools.bench.scene import STATE_BELOW

WORKLOADS: Final = 100
CORE_BUDGET_PCT: Final = 0.5
TICK_BUDGET_MS: Final = 1.0
RSS_BUDGET_BYTES: Final = 80 << 20
HISTORY_WINDOWS: Final = 720
CYCLES: Final = 120
"""Windows after which every model has been fitted again."""
TICKS: Final = 600
GRACE_TICKS: Final = 720
"""Ticks until the shaper acts: its grace of ten intervals, and two more."""
RUNS: Final = 4
FITS: Final = 5
"""Number of concurrent memory fits; one is usual."""
SCALES: Final = {
    "cpu_usage_cores": 4.0,
    "memory_working_set_bytes": 4e9,
    "llc_occupancy_bytes": 2e7,
    "mbw_bytes_per_s": 5e9,
    "load_per_s": 1000.0,
}
_HISTORY_INTERVAL_S: Final = 10.0
_INTERVAL_S: Final = 1.0
START_S: Final = 180.0
SETTLE_S: Final = 10.0
_SIZING: Final = """
[forecast]
enabled = true
[sizing]
shaper = "{shaper}"
[tuning.sizing]
memory = "400G"
"""
_PERPHD: Final = (sys.executable, "-c", "from perphd.commands.daemon import main; main()")
_with_memory: Final = changer(
    Sample, "memory_working_set_bytes", "memory_current_bytes", "memory_full_pct", "refaults_per_s"
)
_ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """CPU seconds of the first cycle, and milliseconds of the others; ``core_pct``: their mean over a minute."""

    workloads: int
    cycles: int
    first_s: float
    mean_ms: float
    p99_ms: float

    @property
    def core_pct(self) -> float:
        """Long-term share of one core."""
        return 100.0 * self.mean_ms / 1e3 / WINDOW_S


@dataclass(frozen=True, slots=True)
class TickCost:
    """Milliseconds of CPU time that forecasts and sizing take of a tick; ``parts``: the greatest of each part."""

    workloads: int
    ticks: int
    mean: float
    p50: float
    p99: float
    most: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """A daemon and its worker over ``seconds``; worker figures are 0 without forecasts."""

    forecasts: bool
    seconds: float
    daemon_pct: float
    daemon_rss_bytes: int
    worker_pct: float
    worker_rss_bytes: int


def worker_cost(workloads: int = WORKLOADS, cycles: int = CYCLES, seed: int = 7) -> WorkerCost:
    """Cycles of a worker in this process."""
    listed = [Listed(f"batch-{n:03}", "", 0, frozenset(), 4_000_000_000) for n in range(workloads)]
    first = int(time.time() // WINDOW_S) - HISTORY_WINDOWS
    took = []
    with tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as folder:
        path = Path(folder) / "perphd.db"
        series = made_series([each.name for each in listed], HISTORY_WINDOWS + cycles, seed)
        fill(path, series, first, 0, HISTORY_WINDOWS, _HISTORY_INTERVAL_S)
        worker = ForecastWorker(path, Path(folder) / "forecast", "bench")
        for cycle in range(cycles + 1):
            began = time.process_time()
            worker.cycle(listed)
            took.append(time.process_time() - began)
            window = HISTORY_WINDOWS + cycle
            fill(path, series, first, window, min(window + 1, HISTORY_WINDOWS + cycles), _INTERVAL_S)
        published = json.loads((Path(folder) / "forecast" / MEMORY_FILE).read_text())
    if len(published) != workloads:
        raise RuntimeError(f"the worker forecasts the memory of {len(published)} of {workloads} workloads")
    later = 1e3 * np.array(took[1:])
    return WorkerCost(workloads, cycles, took[0], float(later.mean()), float(np.quantile(later, 0.99)))


def made_series(names: Sequence[str], windows: int, seed: int) -> dict[str, dict[str, Floats]]:
    """Five series of each workload, taken in rotation from the generated families."""
    kinds = list(families.GENERATORS)
    wanted = len(names) * len(SERIES)
    pools = {kind: families.generated(kind, -(-wanted // len(kinds)), windows, seed) for kind in kinds}
    found: dict[str, dict[str, Floats]] = {}
    for place, name in enumerate(names):
        found[name] = {}
        for number, column in enumerate(SERIES):
            which = place * len(SERIES) + number
            pool = pools[kinds[which % len(kinds)]]
            found[name][column] = SCALES[column] * pool[which // len(kinds)]
    return found


def fill(
    path: Path,
    series: dict[str, dict[str, Floats]],
    origin: int,
    first: int,
    end: int,
    interval_s: float,
) -> None:
    """Add the samples of windows ``first`` to ``end`` to a store; ``origin``: number of the first window since 1970."""
    database = open_database(path)
    columns = ", ".join(SERIES)
    query = (
        f"INSERT INTO samples (wall_s, at_s, interval_s, workload, quality, {columns}) "
        f"VALUES (?, ?, ?, ?, '', {', '.join('?' * len(SERIES))})"
    )
    samples = int(WINDOW_S / interval_s)
    with contextlib.closing(database), database:
        for window in range(first, end):
            begin_s = (origin + window) * WINDOW_S
            for sample in range(samples):
                # The window's greatest value is in its third sample.
                share = 1.0 if sample == 2 else 0.8
                at_s = begin_s + sample * interval_s
                database.executemany(
                    query,
                    [
                        (
                            at_s,
                            at_s,
                            interval_s,
                            name,
                            *(share * float(values[column][window]) for column in SERIES),
                        )
                        for name, values in series.items()
                    ],
                )


def tick_cost(
    workloads: int = WORKLOADS, ticks: int = TICKS, *, runs: int = RUNS, realtime: bool = False
) -> TickCost:
    """Ticks of an agent in this process, after ``GRACE_TICKS``. ``realtime``: see ``history``.

    ``runs``: number of repetitions; the least time of each tick counts, because the others include other work of the
    machine.

    Raises:
        BenchError: control groups cannot be made here.
    """
    took: list[dict[str, float]] = []
    with BenchGroups(workloads, workloads) as groups:
        for _ in range(runs):
            with tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as state:
                found = asyncio.run(_ticked(groups.paths, Path(state), ticks, realtime))
            took = [min(pair, key=_total) for pair in zip(took or found, found, strict=True)]
    totals = [_total(each) for each in took]
    p50, p99, most = (float(each) for each in np.quantile(totals, (0.5, 0.99, 1.0)))
    parts = {name: max(each[name] for each in took) for name in took[0]}
    return TickCost(workloads, ticks, float(np.mean(totals)), p50, p99, most, parts)


def _total(parts: dict[str, float]) -> float:
    return sum(parts.values())


async def _ticked(paths: Sequence[str], state: Path, ticks: int, realtime: bool) -> list[dict[str, float]]:
    """Milliseconds of every tick by part."""
    now_s = 1000.0
    offset_s = time.time() // WINDOW_S * WINDOW_S - now_s
    config = parse(configuration(paths, state, "pessimistic"), "bench")
    parts = build_parts(config, clock=lambda: now_s, wall_clock=lambda: offset_s + now_s)
    names = [f"batch-{number:03}" for number in range(len(paths))]
    memory, meter = _Memory(names, (GRACE_TICKS + ticks) // int(WINDOW_S) + 1), _Meter()
    agent = assemble(config, meter.timed(parts, state, memory), lambda: now_s)
    try:
        found = []
        for tick in range(-GRACE_TICKS, ticks):
            if tick == 0:
                spare_the_start()  # as the daemon does after its start
                for name in names[:FITS]:
                    agent.start_memory_fit(name, 60, 0.05)
            if tick % WINDOW_S == 10:
                memory.publish(state / "forecast", int((offset_s + now_s) // WINDOW_S))
            meter.clear()
            now_s += 1.0
            memory.second = tick + GRACE_TICKS
            with undisturbed(realtime and tick >= 0), collecting_later():
                await agent.tick(now_s)
            if tick >= 0:
                found.append({name: 1e3 * spent for name, spent in meter.spent.items()})
    finally:
        await agent.stop(restore=True)
    return found


def process_cost(seconds: float, *, forecasts: bool, workloads: int = WORKLOADS) -> ProcessCost:
    """A daemon as a process, and its worker, for this long after the first forecasts.

    Raises:
        BenchError: control groups cannot be made here, or the daemon does not forecast.
    """
    with (
        BenchGroups(workloads, workloads, workloads) as groups,
        tempfile.TemporaryDirectory(prefix="perphd-bench-", dir=STATE_BELOW) as folder,
    ):
        state = Path(folder)
        config, log = state / "perphd.toml", state / "log"
        config.write_text(configuration(groups.paths, state, "observe" if forecasts else ""))
        config.chmod(0o600)
        names = [f"batch-{number:03}" for number in range(workloads)]
        first = int(time.time() // WINDOW_S) - HISTORY_WINDOWS
        fill(
            state / "perphd.db",
            made_series(names, HISTORY_WINDOWS, 7),
            first,
            0,
            HISTORY_WINDOWS,
            _HISTORY_INTERVAL_S,
        )
        with log.open("wb") as output:
            daemon = psutil.Popen(
                [*_PERPHD, "run", "--config", str(config)],
                stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )  # fmt: skip
        try:
            _wait_for((state / "perphd.sock").exists, daemon, log)
            if forecasts:
                _wait_for((state / "forecast" / MEMORY_FILE).exists, daemon, log)
            time.sleep(SETTLE_S)
            worker = daemon.children()[0] if forecasts else None
            return _watched(daemon, worker, seconds)
        finally:
            daemon.terminate()
            daemon.wait(START_S)


def _wait_for(done: Callable[[], bool], daemon: psutil.Popen, log: Path) -> None:
    until = time.monotonic() + START_S
    while not done():
        if daemon.poll() is not None or time.monotonic() > until:
            raise BenchError(f"the daemon makes no forecasts:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def _watched(daemon: psutil.Process, worker: psutil.Process | None, seconds: float) -> ProcessCost:
    watched = [each for each in (daemon, worker) if each is not None]
    before, began_s = [_cpu_s(each) for each in watched], time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    pct = [100.0 * (_cpu_s(each) - used) / took_s for each, used in zip(watched, before, strict=True)]
    rss = [each.memory_info().rss for each in watched]
    return ProcessCost(
        worker is not None, took_s, pct[0], rss[0], *((pct[1], rss[1]) if worker else (0.0, 0))
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def lines(worker: WorkerCost, tick: TickCost | None, processes: Sequence[ProcessCost]) -> list[str]:
    """The part of the report about these costs."""
    found = [
        "## What it costs",
        "",
        f"The worker with {worker.workloads} workloads, five series each: {worker.first_s:.1f} s of CPU time for the "
        f"first cycle, which reads {HISTORY_WINDOWS // 60} h of samples, then {worker.mean_ms:.0f} ms a minute on "
        f"average (p99 {worker.p99_ms:.0f} ms, {worker.cycles} cycles): {worker.core_pct:.2f} % of a core, "
        f"{_verdict(worker.core_pct, CORE_BUDGET_PCT)} {CORE_BUDGET_PCT:g} %.",
        "",
    ]
    if tick is not None:
        parts = ", ".join(f"{name} {most:.2f}" for name, most in tick.parts.items())
        found += [
            f"Forecasts and sizing in a tick with {tick.workloads} workloads, all shaped, {FITS} memory fits going on: "
            f"{tick.mean:.2f} ms of CPU time on average, p50 {tick.p50:.2f}, p99 {tick.p99:.2f}, greatest "
            f"{tick.most:.2f} ({tick.ticks} ticks; greatest of each part: {parts}); "
            f"p50 {_verdict(tick.p50, TICK_BUDGET_MS)} {TICK_BUDGET_MS:g} ms.",
            "",
        ]
    if processes:
        found += [
            f"| daemon with {WORKLOADS} workloads, 1 Hz | CPU of the daemon | its RSS | CPU of the worker | its RSS |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for each in processes:
            own = (
                (f"{each.worker_pct:.2f} %", f"{each.worker_rss_bytes / 2**20:.1f} MiB")
                if each.forecasts
                else ("-", "-")
            )
            found.append(
                f"| {'with forecasts and the shaper' if each.forecasts else 'without'}, {each.seconds:.0f} s | "
                f"{each.daemon_pct:.2f} % | {each.daemon_rss_bytes / 2**20:.1f} MiB | {own[0]} | {own[1]} |"
            )
        most = max(each.daemon_rss_bytes for each in processes)
        verdict = f"{_verdict(most, RSS_BUDGET_BYTES)} {RSS_BUDGET_BYTES >> 20} MiB"
        found += ["", f"The daemon's memory is {verdict}, which is the budget with 50 workloads.", ""]
    return found


def _verdict(found: float, budget: float) -> str:
    return "within" if found <= budget else "over"


def configuration(paths: Sequence[str], state: Path, shaper: str = "") -> str:
    """Only batch workloads, each with a reservation; ``shaper``: its mode, with forecasts; empty: neither."""
    lines = ["[daemon]", 'mode = "enforce"', f'state_dir = "{state}"', f'socket = "{state}/perphd.sock"']
    if shaper:
        lines.append(_SIZING.format(shaper=shaper))
    for number, path in enumerate(paths):
        lines += ["[[batch]]", f'name = "batch-{number:03}"', f'cgroup = "{path}"']
        lines += ['reserved_memory = "4G"', 'shape = "elastic"'] if shaper else []
    return "\n".join(lines) + "\n"


class _Memory:
    """Memory of the workloads at ``second``: each follows a generated series of window maxima, mostly below the maximum
    within a window.
    """

    def __init__(self, names: Sequence[str], windows: int) -> None:
        self._peaks = {
            name: each["memory_working_set_bytes"] for name, each in made_series(names, windows, 7).items()
        }
        self._random = random.Random(7)
        self.second = 0

    def given_to(self, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with that memory, and with some refaults."""
        window, at_s = divmod(self.second, int(WINDOW_S))
        found = []
        for place, sample in enumerate(samples):
            share = 1.0 if at_s == 7 * place % int(WINDOW_S) else self._random.uniform(0.7, 0.9)
            used = max(1e6, share * float(self._peaks[sample.workload][window]))
            found.append(_with_memory(sample, used, 1.1 * used, 0.0, self._random.uniform(0.0, 50.0)))
        return tuple(found)

    def publish(self, folder: Path, number: int) -> None:
        """Replace the worker's file for the shaper by the maxima of the previous window."""
        before = max(0, self.second // int(WINDOW_S) - 1)
        told = {}
        for name, peaks in self._peaks.items():
            mean = max(1e6, float(peaks[before]))
            told[name] = {"number": number, "model": "last", "mean_bytes": mean, "bound_bytes": 1.2 * mean}
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / "new"
        temporary.write_text(json.dumps(told))
        temporary.replace(folder / MEMORY_FILE)


class _Meter:
    """CPU time of the loop in forecasts and sizing, by part, since ``clear``."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def clear(self) -> None:
        self.spent = dict.fromkeys(self.spent, 0.0)

    def timed(self, parts: Parts, state: Path, memory: _Memory) -> Parts:
        """These parts of an agent with timers around some of them; the worker is a process that only reads.

        Their ``over`` is not timed: it is called for every workload, and a timer would take five times as long.
        """
        forecasts, jobs = ForecastProcess(state / "forecast", (), parts.records, ("cat",), None), parts.jobs
        assert jobs is not None
        shaping: Any = _Timed(parts.shaping, look=self._timer("shaper", parts.shaping.look))
        fitting: Any = _Timed(parts.fitting, look=self._timer("memory fits", parts.fitting.look))
        worker: Any = _Timed(forecasts, step=self._timer("worker told", forecasts.step))
        monitor: Any = _Timed(
            parts.monitor, sample=lambda *args: memory.given_to(parts.monitor.sample(*args))
        )
        runs: Any = _Timed(jobs, follow=self._timer("runs followed", jobs.follow))
        return replace(
            parts,
            shaping=shaping,
            fitting=fitting,
            forecasts=worker,
            monitor=monitor,
            jobs=runs,
            owned=(*parts.owned, forecasts),
        )

    def _timer(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        self.spent[part] = 0.0

        def timed(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **named)
            finally:
                self.spent[part] += time.thread_time() - began

        return timed


class _Timed:
    """An object with some of its methods replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
