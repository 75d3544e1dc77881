"""A trace, or whole machines of it, as columns: lives of workloads, use over time, requests of each machine.

Memory is bounded: from a larger trace, only machines whose name hashes below a share are kept, with everything on them,
and the same share of unplaced workloads. This takes two passes over the records.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.trace import MachineUse, TraceMachine, TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind

MOST_ROWS: Final = 1_000_000
"""Most rows of a trace that is held completely, at about 400 bytes each."""
SLOT_S: Final = 300.0
MOST_CELLS: Final = 20_000_000
"""Most cells of a matrix of machines by slots; a larger one gets longer slots instead."""
Column: TypeAlias = NDArray[np.float64]
Records: TypeAlias = Callable[..., Iterable[TraceRecord]]
"""Returns the records of these types; it can be called repeatedly."""
MEASURED: Final = (
    "cpu", "cpu_of_request", "memory", "memory_of_request", "cpu_some_10_pct", "cpu_some_60_pct", "cpu_some_300_pct",
    "memory_some_60_pct", "rate_per_s", "response_time_ms",
)  # fmt: skip
_ADDED: Final = (
    "app", "kind", "machine", "submitted_s", "start_s", "end_s", "instances", "cpu_request", "cpu_limit",
    "memory_request", "memory_limit", "cpu_mean", "memory_mean",
)  # fmt: skip
_NAN: Final = float("nan")


@dataclass(slots=True)
class Life:
    """Facts about a workload; nan: unknown. ``seen_s``: times of its first and last row of use."""

    app: str = ""
    kind: Kind | None = None
    machine: str = ""
    state: str = ""
    submitted_s: float = _NAN
    start_s: float = _NAN
    end_s: float = _NAN
    instances: float = _NAN
    cpu_request: float = _NAN
    cpu_limit: float = _NAN
    memory_request: float = _NAN
    memory_limit: float = _NAN
    cpu_mean: float = _NAN
    memory_mean: float = _NAN
    seen_s: tuple[float, float] = (_NAN, _NAN)

    def add(self, row: TraceWorkload) -> None:
        """Add a row's facts; the first start counts, and the last value of everything else."""
        self.state = row.state or self.state
        for name in _ADDED:
            value = getattr(row, name)
            first = name in ("submitted_s", "start_s") and getattr(self, name) == getattr(self, name)
            if not isinstance(value, Unavailable) and value not in ("", None) and not first:
                setattr(self, name, value)

    @property
    def begins_s(self) -> float:
        """The time at which it began to run, if known."""
        return self.start_s if self.start_s == self.start_s else self.seen_s[0]

    @property
    def ends_s(self) -> float:
        """The time at which it ended; infinity if it did not."""
        if self.end_s == self.end_s:
            return self.end_s
        return (
            np.inf
            if self.start_s == self.start_s and self.seen_s[1] != self.seen_s[1]
            else self.seen_s[1] + SLOT_S
        )

    @property
    def run_time_s(self) -> float:
        """From start to end; nan if either is unknown."""
        return self.end_s - self.start_s


@dataclass(slots=True)
class Fleet:
    """``share``: of the machines that is held. Matrices are machines by slots, nan where nothing is known.

    ``use``: columns of rows of use; ``row_life``, ``row_machine`` and ``row_slot`` are indices (-1: none).
    """

    share: float
    slot_s: float
    start_s: float
    machines: list[str]
    lives: list[Life]
    capacity: dict[str, Column]
    host: dict[str, Column]
    requested: dict[str, Column]
    use: dict[str, Column]
    row_life: NDArray[np.int64]
    row_machine: NDArray[np.int64]
    row_slot: NDArray[np.int64]
    index: dict[str, int] = field(default_factory=dict)

    def slot(self, at_s: float) -> int:
        """The slot of a time, within the trace."""
        slots = self.host["cpu"].shape[1]
        return (
            int(np.clip((at_s - self.start_s) // self.slot_s, 0, slots - 1))
            if np.isfinite(at_s)
            else slots - 1
        )

    def means(self, column: str) -> Column:
        """The mean of a column of use, by life."""
        return self._binned(column, self.row_life, len(self.lives))

    def _binned(self, column: str, where: NDArray[np.int64], count: int) -> Column:
        values = self.use[column]
        fit = np.isfinite(values) & (where >= 0)
        total = np.bincount(where[fit], values[fit], count)
        rows = np.bincount(where[fit], minlength=count)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(rows > 0, total / rows, np.nan))


def chosen(name: str, share: float) -> bool:
    """True if a machine is in this share; equal for every trace that names it."""
    return share >= 1.0 or zlib.crc32(name.encode()) < share * 2**32


def collect(records: Records, share: float = 1.0, slot_s: float = SLOT_S) -> Fleet:
    """Read a trace in two passes: first placements, then everything about the kept workloads."""
    lives, capacities = _lives(records, share)
    order = {name: n for n, name in enumerate(lives)}
    columns = {name: array("d") for name in ("at_s", *MEASURED)}
    row_life, row_machine = array("q"), array("q")
    hosts = {name: array("d") for name in ("machine", "at_s", "cpu", "memory")}
    index = {name: n for n, name in enumerate(capacities)}
    for record in records(MachineUse, WorkloadUse):
        if isinstance(record, MachineUse):
            if not chosen(record.machine, share):
                continue
            number = index.setdefault(record.machine, len(index))
            cpus = capacities.get(record.machine, (_NAN, _NAN))[0]
            used = _number(record.cpu_share)
            used = used if used == used else _number(record.cpu) / cpus
            for name, value in zip(
                hosts, (number, record.at_s, used, _number(record.memory_share)), strict=True
            ):
                hosts[name].append(value)
        elif isinstance(record, WorkloadUse) and record.workload in order:
            life = lives[record.workload]
            life.seen_s = _widened(life.seen_s, record.at_s)
            machine = record.machine or life.machine
            row_life.append(order[record.workload])
            row_machine.append(index.setdefault(machine, len(index)) if machine else -1)
            columns["at_s"].append(record.at_s)
            for name in MEASURED:
                columns[name].append(_number(getattr(record, name)))
    held = list(lives.values())
    for life in held:
        if life.machine:
            index.setdefault(life.machine, len(index))
    use = {name: np.array(values) for name, values in columns.items()}
    fleet = Fleet(share, slot_s, 0.0, list(index), held, {}, {}, {}, use, np.array(row_life), np.array(row_machine),
                  np.zeros(0, np.int64), index)  # fmt: skip
    for place, name in enumerate(("cpu", "memory")):
        fleet.capacity[name] = np.array([capacities.get(each, (_NAN, _NAN))[place] for each in index])
    _complete(fleet)
    _hosts(fleet, {name: np.array(values) for name, values in hosts.items()})
    _requests(fleet)
    return fleet


def _lives(records: Records, share: float) -> tuple[dict[str, Life], dict[str, tuple[float, float]]]:
    """The kept workloads, and capacities. Without a share all are kept, in one pass."""
    lives: dict[str, Life] = {}
    capacities: dict[str, tuple[float, float]] = {}
    placed: dict[str, bool] = {}
    if share < 1.0:
        for record in records(TraceWorkload, WorkloadUse):
            if isinstance(record, TraceWorkload | WorkloadUse) and record.machine:
                held = chosen(record.machine, share)
                if held or chosen(record.workload, share):
                    placed[record.workload] = held or placed.get(record.workload, False)
    for record in records(TraceMachine, TraceWorkload, WorkloadUse):
        if isinstance(record, TraceMachine):
            if chosen(record.machine, share) and record.in_service:
                old = capacities.get(record.machine, (_NAN, _NAN))
                new = (_number(record.cpus), _number(record.memory))
                capacities[record.machine] = tuple(b if b == b else a for a, b in zip(old, new, strict=True))  # type: ignore[assignment]
        elif isinstance(record, TraceWorkload | WorkloadUse):
            if not placed.get(record.workload, chosen(record.workload, share)):
                continue
            life = lives.setdefault(record.workload, Life())
            if isinstance(record, TraceWorkload):
                life.add(record)
            else:
                life.app, life.machine = life.app or record.app, life.machine or record.machine
    return lives, capacities


def _complete(fleet: Fleet) -> None:
    """Copy tasks' requests to their instances, and derive amounts from shares of requests and vice versa."""
    tasks = {life.app: life for life in fleet.lives if life.instances == life.instances}
    for life in fleet.lives:
        task = tasks.get(life.app)
        if task is not None and task is not life:
            for name in ("cpu_request", "memory_request"):
                if getattr(life, name) != getattr(life, name):
                    setattr(life, name, getattr(task, name))
    for what in ("cpu", "memory"):
        of_life = np.array([getattr(life, f"{what}_request") for life in fleet.lives])
        request = of_life[fleet.row_life] if len(fleet.row_life) else np.zeros(0)
        amount, ratio = fleet.use[what], fleet.use[f"{what}_of_request"]
        with np.errstate(invalid="ignore", divide="ignore"):
            fleet.use[what] = np.where(np.isfinite(amount), amount, ratio * request)
            fleet.use[f"{what}_of_request"] = np.where(
                np.isfinite(ratio) | ~(request > 0), ratio, amount / request
            )


def _hosts(fleet: Fleet, rows: dict[str, Column]) -> None:
    """Utilisation of machines by slot: as published; for machines without rows, the sum of the workloads' use."""
    known = [life.begins_s for life in fleet.lives] + [life.end_s for life in fleet.lives]
    times = np.concatenate([rows["at_s"], fleet.use["at_s"], np.array(known)])
    times = times[np.isfinite(times)]
    fleet.start_s, last_s = (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)
    count = max(1, len(fleet.machines))
    fleet.slot_s = max(fleet.slot_s, (last_s - fleet.start_s) * count / MOST_CELLS)
    slots = int((last_s - fleet.start_s) // fleet.slot_s) + 1
    fleet.row_slot = ((fleet.use["at_s"] - fleet.start_s) // fleet.slot_s).astype(np.int64)
    at = rows["machine"].astype(np.int64) * slots + ((rows["at_s"] - fleet.start_s) // fleet.slot_s).astype(
        np.int64
    )
    placed = fleet.row_machine >= 0
    # The mean of a workload in a slot first: several rows of one slot are not several workloads.
    pairs, inverse = np.unique(
        np.stack([fleet.row_machine, fleet.row_slot, fleet.row_life], 1)[placed], axis=0, return_inverse=True
    )
    for name in ("cpu", "memory"):
        matrix = _mean(at, rows[name], count * slots)
        used = _mean(inverse.ravel(), fleet.use[name][placed], len(pairs))
        fit = np.isfinite(used)
        cell = pairs[fit, 0] * slots + pairs[fit, 1] if len(pairs) else np.zeros(0, np.int64)
        total = np.bincount(cell, used[fit], count * slots)
        seen = np.bincount(cell, minlength=count * slots) > 0
        capacity = np.repeat(fleet.capacity[name] if len(fleet.machines) else np.array([_NAN]), slots)
        own = np.repeat(np.isfinite(matrix.reshape(count, slots)).any(1), slots)
        with np.errstate(invalid="ignore", divide="ignore"):
            matrix = np.where(own | ~seen, matrix, total / capacity)
        fleet.host[name] = matrix.reshape(count, slots)


def _requests(fleet: Fleet) -> None:
    """Sums of requests and limits of the workloads on each machine in each slot."""
    count, slots = fleet.host["cpu"].shape
    for name in ("cpu_request", "memory_request", "cpu_limit"):
        change = np.zeros((count, slots + 1))
        for life in fleet.lives:
            value = getattr(life, name)
            if (
                life.machine
                and value == value
                and life.begins_s == life.begins_s
                and life.instances != life.instances
            ):
                number = fleet.index[life.machine]
                change[number, fleet.slot(life.begins_s)] += value
                if np.isfinite(life.ends_s):
                    change[number, max(fleet.slot(life.begins_s), fleet.slot(life.ends_s)) + 1] -= value
        fleet.requested[name] = change.cumsum(1)[:, :slots]


def _mean(where: NDArray[np.int64], values: Column, count: int) -> Column:
    fit = np.isfinite(values)
    rows = np.bincount(where[fit], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(rows > 0, np.bincount(where[fit], values[fit], count) / rows, np.nan))


def _widened(seen: tuple[float, float], at_s: float) -> tuple[float, float]:
    return (at_s, at_s) if seen[0] != seen[0] else (min(seen[0], at_s), max(seen[1], at_s))


def _number(reading: Reading) -> float:
    return reading if available(reading) else _NAN
