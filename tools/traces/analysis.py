"""Analyses of a fleet, as figures by name. A figure that the trace does not support is Unavailable, with the reason.

The questions are those of the studies of Alibaba's traces (2017: imbalances; 2022: over-commitment, variation,
correlation, alignment, waiting) and of schedulers that predict run times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from perphd.domain.reading import Reading, Unavailable
from perphd.domain.workload import Kind
from tools.traces.fleet import Column, Fleet, Life

Figures: TypeAlias = dict[str, Reading]
LEAST_ROWS: Final = 30
"""Least number of rows or runs of an application for a correlation."""
LEAST_LIKES: Final = 5
"""Least number of workloads of an application for a coefficient of variation."""
HISTORY: Final = 25
"""Numbers of past runs for run-time prediction; with 25, published schedulers equal perfect estimates."""
HISTORIES: Final = (5, 10, HISTORY, 50)
MOST_PLACEMENTS: Final = 20_000
LONG_WAIT_S: Final = 100.0
_NONE: Final = Unavailable("the trace does not say")
_KINDS: Final = (Kind.LRA, Kind.BATCH)
RESPONSE_WITH: Final = (
    "cpu_some_10_pct", "cpu_some_60_pct", "cpu_some_300_pct", "memory_some_60_pct", "cpu_of_request",
    "memory_of_request", "host_cpu", "host_memory",
)  # fmt: skip


def over_commitment(fleet: Fleet) -> Figures:
    """Requests on a machine over its capacity, without machines and slots in which nothing runs."""
    found: Figures = {}
    for name in ("cpu_request", "cpu_limit", "memory_request"):
        capacity = fleet.capacity[name.partition("_")[0]]
        if not len(capacity):
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = fleet.requested[name] / capacity[:, None]
        ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
        found |= _spread(f"{name}_over_capacity", ratio)
        found[f"{name}_above_capacity_share"] = _mean(ratio > 1.0 + 1e-9)
    return found


def request_against_use(fleet: Fleet) -> Figures:
    """Used share of requests: each workload's mean over its life."""
    found: Figures = {}
    for what in ("cpu", "memory"):
        ratios = fleet.means(f"{what}_of_request")
        for kind in _KINDS:
            values = []
            for life, ratio in zip(fleet.lives, ratios, strict=True):
                request = getattr(life, f"{what}_request")
                mean = (
                    ratio
                    if ratio == ratio
                    else getattr(life, f"{what}_mean") / request
                    if request > 0
                    else np.nan
                )
                if life.kind is kind and mean == mean:
                    values.append(mean)
            found |= _spread(f"{kind}_{what}_of_request", np.array(values))
    return found


def variation(fleet: Fleet) -> Figures:
    """Coefficient of variation among the workloads of an application: median, and share below 1."""
    columns = {name: fleet.means(name) for name in ("cpu", "memory", "rate_per_s", "response_time_ms")}
    for what in ("cpu", "memory"):
        own = np.array([getattr(life, f"{what}_mean") for life in fleet.lives])
        columns[what] = np.where(np.isfinite(columns[what]), columns[what], own)
    columns["run_time_s"] = np.array([life.run_time_s for life in fleet.lives])
    found: Figures = {}
    for kind in _KINDS:
        apps = _by_app(fleet, kind)
        for name, values in columns.items():
            each = np.array([cov(values[members]) for members in apps.values()])
            each = each[np.isfinite(each)]
            found[f"{kind}_{name}_cov"] = _median(each)
            found[f"{kind}_{name}_cov_below_1_share"] = _mean(each < 1.0)
    return found


def correlations(fleet: Fleet) -> Figures:
    """Pearson's coefficient by application: response time and load of LRAs, run time of batch, with stalls and use.

    For each pair the median over applications, and the share above 0.5. A run's host is its mean and maximum
    over the run.
    """
    columns = dict(fleet.use)
    placed = (fleet.row_machine >= 0) & (fleet.row_slot >= 0)
    for name in ("cpu", "memory"):
        host = np.full(len(fleet.row_life), np.nan)
        host[placed] = fleet.host[name][fleet.row_machine[placed], fleet.row_slot[placed]]
        columns[f"host_{name}"] = host
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, number in enumerate(fleet.row_life):
        life = fleet.lives[number]
        if life.app and life.kind is not Kind.BATCH:
            rows_of[life.app].append(row)
    apps = [np.array(rows) for rows in rows_of.values()]
    pairs = [("response_time_ms", other) for other in RESPONSE_WITH]
    pairs += [
        ("rate_per_s", "cpu_some_60_pct"),
        ("cpu_some_60_pct", "host_cpu"),
        ("cpu_some_60_pct", "cpu_of_request"),
    ]
    found: Figures = {}
    for one, other in pairs:
        found |= _correlated(
            f"{one}~{other}", (correlation(columns[one][at], columns[other][at]) for at in apps)
        )
    runs = [[fleet.lives[n] for n in members] for members in _by_app(fleet, Kind.BATCH, LEAST_ROWS).values()]
    for name in ("cpu", "memory"):
        for how, reduce in (("mean", np.nanmean), ("max", np.nanmax)):
            each = (_run_correlation(fleet, lives, name, reduce) for lives in runs)
            found |= _correlated(f"run_time_s~host_{name}_{how}", each)
    return found


def imbalances(fleet: Fleet) -> Figures:
    """The four imbalances: among machines, over time, between CPU and memory, between LRAs and batch."""
    found: Figures = {}
    cpu, memory = fleet.host["cpu"], fleet.host["memory"]
    for name, matrix in (("cpu", cpu), ("memory", memory)):
        found[f"{name}_utilisation"] = _mean(matrix[np.isfinite(matrix)])
        found[f"spatial_{name}_cov"] = _mean_cov(matrix.T)
        found[f"temporal_{name}_cov"] = _mean_cov(matrix)
    both = np.isfinite(cpu) & np.isfinite(memory)
    found["cpu_memory_gap"] = _mean(np.abs(cpu - memory)[both])
    found["cpu_memory_correlation"] = _reading(correlation(cpu[both], memory[both]))
    used = fleet.means("cpu")
    for kind in _KINDS:
        numbers = [
            n for n, life in enumerate(fleet.lives) if life.kind is kind and life.instances != life.instances
        ]
        lives = [fleet.lives[n] for n in numbers]
        found[f"{kind}_count"] = float(len(lives))
        found[f"{kind}_duration_s"] = _median(_finite(life.ends_s - life.begins_s for life in lives))
        found[f"{kind}_cpu"] = _mean(
            _finite(used[n] if used[n] == used[n] else fleet.lives[n].cpu_mean for n in numbers)
        )
    for name in ("count", "duration_s", "cpu"):
        found[f"batch_over_lra_{name}"] = _over(found[f"{Kind.BATCH}_{name}"], found[f"{Kind.LRA}_{name}"])
    return found


def run_times(fleet: Fleet) -> Figures:
    """Error of predicting a run time by the median of the application's last runs, by length of the history."""
    runs = [
        np.array([life.run_time_s for life in sorted(lives, key=lambda life: life.end_s)])
        for members in _by_app(fleet, Kind.BATCH, 1).values()
        if (lives := [fleet.lives[n] for n in members if fleet.lives[n].run_time_s > 0])
    ]
    found: Figures = {"applications": float(len(runs))}
    groups = np.array([cov(each) for each in runs if len(each) >= LEAST_LIKES])
    found["cov_above_1_share"] = _mean(groups > 1.0)
    for length in HISTORIES:
        ratios = np.array(
            [np.median(each[n - length : n]) / each[n] for each in runs for n in range(length, len(each))]
        )
        found[f"history_{length}_predictions"] = float(len(ratios))
        found[f"history_{length}_within_2x_share"] = _mean((ratios >= 0.5) & (ratios <= 2.0))
        found[f"history_{length}_below_half_share"] = _mean(ratios < 0.5)
        found[f"history_{length}_error"] = _median(np.abs(ratios - 1.0))
    return found


def alignment(fleet: Fleet) -> Figures:
    """Share of placements on a machine in the first quarter by <request, X>, where X is use or the sum of requests.

    A scheduler that over-commits chooses by use, a conservative one by requests. 0.25 is chance.
    """
    capacity = np.stack([fleet.capacity["cpu"], fleet.capacity["memory"]], 1)
    by = {
        "use": (fleet.host["cpu"], fleet.host["memory"]),
        "requests": tuple(
            fleet.requested[f"{name}_request"] / fleet.capacity[name][:, None] for name in ("cpu", "memory")
        ),
    }
    shares: dict[str, list[float]] = defaultdict(list)
    if not np.isfinite(capacity).any():
        return dict.fromkeys((f"{kind}_by_{name}_top_quarter_share" for kind in _KINDS for name in by), _NONE)
    typical = np.nanmean(capacity, 0)
    starts = [life for life in fleet.lives if life.machine and life.start_s > fleet.start_s + fleet.slot_s]
    for life in starts[:: max(1, len(starts) // MOST_PLACEMENTS)]:
        at, number = fleet.slot(life.start_s) - 1, fleet.index[life.machine]
        request = np.array([life.cpu_request, life.memory_request]) / typical
        for name, (cpu, memory) in by.items():
            score = request[0] * cpu[:, at] + request[1] * memory[:, at]
            known = np.isfinite(score)
            if known[number] and known.sum() >= 4 and life.kind is not None:
                above = (score[known] > score[number]).sum() + ((score[known] == score[number]).sum() - 1) / 2
                shares[f"{life.kind}_by_{name}"].append(above / known.sum())
    return {
        f"{kind}_by_{name}_top_quarter_share": _mean(np.array(shares[f"{kind}_by_{name}"]) < 0.25)
        for kind in _KINDS
        for name in by
    }


def waiting(fleet: Fleet) -> Figures:
    """Waiting times of workloads, and the resource of which no machine had enough (by requests) at submission.

    The cause is "CPU" or "memory" if no machine had that much free, "both" if each was short, "together" if no machine
    had both at once, and "other" else: affinity, quota, or the scheduler itself. Waits shorter than a slot have no
    cause.
    """
    found: Figures = {}
    free = {
        name: fleet.capacity[name][:, None] - fleet.requested[f"{name}_request"] for name in ("cpu", "memory")
    }
    for kind in _KINDS:
        lives = [life for life in fleet.lives if life.kind is kind and life.start_s >= life.submitted_s]
        waits = np.array([life.start_s - life.submitted_s for life in lives])
        found |= _spread(f"{kind}_wait_s", waits)
        found[f"{kind}_waits_above_{LONG_WAIT_S:g}_s_share"] = _mean(waits > LONG_WAIT_S)
        causes = [
            cause
            for life, wait_s in zip(lives, waits, strict=True)
            if wait_s > fleet.slot_s and (cause := _cause(fleet, life, free))
        ]
        for cause in ("cpu", "memory", "both", "together", "other"):
            found[f"{kind}_waits_for_{cause}_share"] = _mean(np.array([each == cause for each in causes]))
    return found


def _cause(fleet: Fleet, life: Life, free: Mapping[str, Column]) -> str:
    at = fleet.slot(life.submitted_s)
    if life.submitted_s < fleet.start_s:
        return ""
    request = {name: getattr(life, f"{name}_request") for name in free}
    if any(not np.isfinite(free[name][:, at]).any() or request[name] != request[name] for name in free):
        return ""
    enough = {name: free[name][:, at] >= request[name] for name in free}
    short = [name for name in free if not enough[name].any()]
    if short:
        return "both" if len(short) == 2 else short[0]
    return "other" if (enough["cpu"] & enough["memory"]).any() else "together"


ANALYSES: Final[dict[str, Callable[[Fleet], Figures]]] = {
    "over-commitment": over_commitment, "request against use": request_against_use,
    "variation within an application": variation, "correlation": correlations, "imbalances": imbalances,
    "run times": run_times, "alignment ranks": alignment, "waiting": waiting,
}  # fmt: skip


# --- statistics ------------------------------------------------------------------------------------------------


def cov(values: Column) -> float:
    """Standard deviation over mean; nan for fewer than ``LEAST_LIKES`` values or a mean of 0."""
    values = values[np.isfinite(values)]
    if len(values) < LEAST_LIKES or values.mean() <= 0:
        return float("nan")
    return float(values.std(ddof=1) / values.mean())


def correlation(one: Column, other: Column) -> float:
    """Pearson's coefficient; nan for fewer than ``LEAST_ROWS`` rows that have both values, or if one of them does not
    vary.
    """
    both = np.isfinite(one) & np.isfinite(other)
    one, other = one[both], other[both]
    if (
        len(one) < LEAST_ROWS
        or one.std() <= 1e-12 * abs(one.mean())
        or other.std() <= 1e-12 * abs(other.mean())
    ):
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _run_correlation(
    fleet: Fleet, lives: Sequence[Life], name: str, reduce: Callable[[Column], float]
) -> float:
    found = []
    for life in lives:
        if life.machine and life.run_time_s > 0:
            host = fleet.host[name][
                fleet.index[life.machine], fleet.slot(life.start_s) : fleet.slot(life.end_s) + 1
            ]
            if np.isfinite(host).any():
                found.append((life.run_time_s, reduce(host)))
    return correlation(*np.array(found).T) if found else float("nan")


def _correlated(name: str, each: Iterable[float]) -> Figures:
    known = _finite(each)
    return {f"{name}_median": _median(known), f"{name}_above_0.5_share": _mean(known > 0.5)}


def _by_app(fleet: Fleet, kind: Kind, least: int = LEAST_LIKES) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, life in enumerate(fleet.lives):
        if life.kind is kind and life.app and life.instances != life.instances:
            found[life.app].append(number)
    return {app: members for app, members in found.items() if len(members) >= least}


def _mean_cov(matrix: Column) -> Reading:
    """The mean of the rows' coefficients of variation."""
    return _mean(_finite(cov(row) for row in matrix))


def _spread(name: str, values: Column) -> Figures:
    if not len(values):
        return {f"{name}_median": _NONE}
    low, middle, high, most = np.percentile(values, [25, 50, 75, 99])
    return {f"{name}_median": float(middle), f"{name}_p25": float(low), f"{name}_p75": float(high),
            f"{name}_p99": float(most), f"{name}_max": float(values.max())}  # fmt: skip


def _finite(values: Iterable[float]) -> Column:
    found: Column = np.array(list(values), float)
    return np.asarray(found[np.isfinite(found)])


def _median(values: Column) -> Reading:
    return float(np.median(values)) if len(values) else _NONE


def _mean(values: Column | np.typing.NDArray[np.bool_]) -> Reading:
    return float(values.mean()) if len(values) else _NONE


def _reading(value: float) -> Reading:
    return value if value == value else _NONE


def _over(one: Reading, other: Reading) -> Reading:
    return one / other if isinstance(one, float) and isinstance(other, float) and other > 0 else _NONE
