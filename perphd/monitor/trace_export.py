"""Exports the store as a trace, in the tables of Alibaba's cluster-trace-v2023."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from perphd.dataset.attempt import PartFile, attempt, read_manifest
from perphd.dataset.manifest import DatasetError, Manifest, NotCommitted
from perphd.dataset.stores import ObjectStore
from perphd.domain.reading import NOT_MEASURED, Reading, available, ratio
from perphd.domain.trace import MachineUse, TraceMachine, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.monitor.query import QueryError, open_read_only
from perphd.monitor.trace_tables import (
    NODE_COLUMNS,
    NODES,
    POD_COLUMNS,
    POD_USE,
    POD_USE_COLUMNS,
    PODS,
    QOS_OF,
    node_row,
    pod_row,
    pod_use_row,
)

FORMAT: Final = "alibaba-v2023"
EVERY_S: Final = 30.0
"""Seconds between two rows of a machine or workload, as in the published trace."""
_STALL_WINDOWS_S: Final = (10, 60, 300)
_STALLS: Final = ("cpu_some", "memory_full", "memory_some", "io_full", "io_some")
_RESPONSE_TIMES: Final = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms")
_MEANS: Final = {
    "cpu_usage_cores": "cpu", "memory_current_bytes": "memory", "read_bytes_per_s": "read_bytes_per_s",
    "write_bytes_per_s": "write_bytes_per_s", "work_rate_per_s": "rate_per_s",
}  # fmt: skip
_USED: Final = (*_MEANS, *_RESPONSE_TIMES, *(f"{stall}_pct" for stall in _STALLS))


@dataclass(frozen=True, slots=True)
class Requested:
    """Reservation of a workload: CPUs, and memory in bytes."""

    cpus: Reading = NOT_MEASURED
    memory_bytes: Reading = NOT_MEASURED


NOTHING: Final = Requested()


def export_trace(
    db_path: str | Path,
    place: ObjectStore,
    node: str,
    requests: Mapping[str, Requested],
    every_s: float = EVERY_S,
) -> Manifest:
    """Commit the store's trace as a dataset.

    Times are seconds since the epoch, so that traces of several hosts can be combined. Pods are named
    NODE/WORKLOAD; their application is the workload.

    Raises:
        QueryError: the store cannot be read, or holds no samples.
        DatasetError: the place holds a dataset already, or refuses the write.
    """
    try:
        raise DatasetError(
            f"{place}: holds a dataset already (attempt {read_manifest(place).attempt}); choose another name"
        )
    except NotCommitted:
        pass
    connection = open_read_only(db_path)
    try:
        connection.execute("BEGIN")
        pods = _pods(connection, node, requests)
        if not pods:
            raise QueryError(f"{db_path}: holds no samples yet; the daemon adds some every few seconds")
        with attempt(place) as made:
            _add(
                made.add, NODES, NODE_COLUMNS, (node_row(*each) for each in _nodes(connection, node, every_s))
            )
            _add(made.add, PODS, POD_COLUMNS, (pod_row(each) for each in pods))
            uses = _uses(connection, node, requests, every_s)
            _add(made.add, POD_USE, POD_USE_COLUMNS, (pod_use_row(each) for each in uses))
            return made.commit(
                {
                    "trace": FORMAT,
                    "node": node,
                    "cpu_unit": "CPUs",
                    "memory_unit": "bytes",
                    "every_s": f"{every_s:g}",
                }
            )
    except sqlite3.Error as exc:
        raise QueryError(f"{db_path}: {exc}") from exc
    finally:
        connection.close()


def _add(
    add: Callable[[str, str, Callable[[PartFile], int]], Any], source: str, header: Iterable[str],
    rows: Iterable[Sequence[str]],
) -> None:  # fmt: skip
    def write(part: PartFile) -> int:
        text = io.TextIOWrapper(cast("Any", part), encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        count = 0
        for row in rows:
            writer.writerow(row)
            count += 1
        text.flush()
        text.detach()
        return count

    add(source, ".csv", write)


def _pods(
    connection: sqlite3.Connection, node: str, requests: Mapping[str, Requested]
) -> list[TraceWorkload]:
    lras = {str(row[0]) for row in connection.execute("SELECT DISTINCT workload FROM decisions")}
    found = []
    for name, first_s in connection.execute(
        "SELECT workload, min(wall_s) FROM samples GROUP BY workload ORDER BY min(wall_s), workload"
    ):
        kind = Kind.LRA if name in lras else Kind.BATCH
        asked = requests.get(name, NOTHING)
        found.append(
            TraceWorkload(
                f"{node}/{name}", kind=kind, qos=QOS_OF[kind], submitted_s=float(int(first_s)),
                cpu_request=asked.cpus, memory_request=asked.memory_bytes,
            )
        )  # fmt: skip
    return found


def _nodes(
    connection: sqlite3.Connection, node: str, every_s: float
) -> Iterator[tuple[MachineUse, TraceMachine]]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'host'").fetchone():
        return
    for slot, cpus, used, total, left in connection.execute(
        "SELECT CAST(wall_s / ? AS INTEGER) AS slot, avg(capacity), avg(lras + batch + undeclared + kernel),"
        " avg(memory_total_bytes), avg(memory_available_bytes) FROM host GROUP BY slot ORDER BY slot",
        (every_s,),
    ):
        memory, free = _reading(total), _reading(left)
        share = ratio(free, memory, "memory")
        use = MachineUse(
            slot * every_s, node, cpu=_reading(used), memory_share=1.0 - share if available(share) else share
        )
        yield use, TraceMachine(slot * every_s, node, _reading(cpus), memory)


def _uses(
    connection: sqlite3.Connection, node: str, requests: Mapping[str, Requested], every_s: float
) -> Iterator[WorkloadUse]:
    """One row per workload and slot, in order of slots. Keeps one slot and 300 s of stalls per workload."""
    present = {str(row[1]) for row in connection.execute("PRAGMA table_info(samples)")}
    names = ", ".join(name if name in present else "NULL" for name in _USED)
    gathered: dict[str, _Gathered] = {}
    slot = None
    for wall_s, interval_s, workload, quality, *values in connection.execute(
        f"SELECT wall_s, interval_s, workload, quality, {names} FROM samples ORDER BY rowid"
    ):
        flags = str(quality).split(",")
        if "first" in flags or "restarted" in flags or interval_s <= 0:
            continue
        now = int(wall_s // every_s)
        if slot is not None and now > slot:
            yield from _slot(gathered, slot * every_s, node, requests)
        slot = now if slot is None else max(slot, now)
        gathered.setdefault(str(workload), _Gathered()).add(float(wall_s), float(interval_s), values)
    if slot is not None:
        yield from _slot(gathered, slot * every_s, node, requests)


def _slot(
    gathered: Mapping[str, _Gathered], at_s: float, node: str, requests: Mapping[str, Requested]
) -> Iterator[WorkloadUse]:
    for name in sorted(gathered):
        if (found := gathered[name]).covered_s > 0:
            yield found.use(at_s, name, node, requests.get(name, NOTHING))
            found.clear()


@dataclass(slots=True)
class _Gathered:
    """The samples of one workload in one slot, and the workload's stalls of the last 300 s."""

    covered_s: float = 0.0
    newest_s: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_USED))
    weights: list[float] = field(default_factory=lambda: [0.0] * len(_USED))
    stalls: deque[tuple[float, float, tuple[float | None, ...]]] = field(default_factory=deque)
    totals_us: list[float | None] = field(default_factory=lambda: [None] * len(_STALLS))

    def add(self, wall_s: float, interval_s: float, values: Sequence[Any]) -> None:
        self.covered_s += interval_s
        self.newest_s = max(self.newest_s, wall_s)
        for place, value in enumerate(values):
            if isinstance(value, int | float):
                self.sums[place] += value * interval_s
                self.weights[place] += interval_s
        shares = tuple(values[-len(_STALLS) :])
        self.stalls.append((wall_s, interval_s, shares))
        while self.stalls[0][0] <= self.newest_s - _STALL_WINDOWS_S[-1]:
            self.stalls.popleft()
        for place, share in enumerate(shares):
            if share is not None:
                self.totals_us[place] = (self.totals_us[place] or 0.0) + share / 100.0 * interval_s * 1e6

    def clear(self) -> None:
        self.covered_s = 0.0
        self.sums, self.weights = [0.0] * len(_USED), [0.0] * len(_USED)

    def use(self, at_s: float, name: str, node: str, asked: Requested) -> WorkloadUse:
        means = {
            name: _reading(total / weight if weight else None)
            for name, total, weight in zip(_USED, self.sums, self.weights, strict=True)
        }
        found = {theirs: means[ours] for ours, theirs in _MEANS.items()}
        response = next((means[name] for name in _RESPONSE_TIMES if available(means[name])), NOT_MEASURED)
        for stall, total in zip(_STALLS, self.totals_us, strict=True):
            found[f"{stall}_total_us"] = _reading(None if total is None else round(total))
        for window_s in _STALL_WINDOWS_S:
            for place, stall in enumerate(_STALLS):
                found[f"{stall}_{window_s}_pct"] = self._stalled(place, window_s)
        return WorkloadUse(
            at_s, f"{node}/{name}", name, node, response_time_ms=response,
            cpu_of_request=ratio(found["cpu"], asked.cpus, "request"),
            memory_of_request=ratio(found["memory"], asked.memory_bytes, "request"), **found,
        )  # fmt: skip

    def _stalled(self, place: int, window_s: int) -> Reading:
        """The mean share over the samples that ended within the window before the newest one."""
        seen = [
            (interval_s, share)
            for at_s, interval_s, shares in self.stalls
            if at_s > self.newest_s - window_s and (share := shares[place]) is not None
        ]
        covered_s = sum(interval_s for interval_s, _ in seen)
        return sum(interval_s * share for interval_s, share in seen) / covered_s if seen else NOT_MEASURED


def _reading(value: Any) -> Reading:
    return float(value) if isinstance(value, int | float) else NOT_MEASURED
