"""Writes packaging/monitoring/perphd-dashboard.json: ``python -m tools.monitoring.dashboard``.

Code generates the file, so that panels look alike and a test can compare every name in it with the existing series.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "packaging/monitoring/perphd-dashboard.json"
_WIDTH, _HEIGHT = 24, 8
_HOST = 'instance=~"$instance"'
_LRA = f'{_HOST},workload=~"$lra"'
DATA_SOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the legend of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot. ``unit``: Grafana's name of it; ``limit``: a line at this value; ``width``: of 24 columns.

    ``is_bad``: a stat of at least 1 is red.
    """

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = "short"
    limit: float | None = None
    width: int = 12
    kind: str = "timeseries"
    stacked: bool = False
    is_bad: bool = True


ROWS: dict[str, Sequence[Panel]] = {
    "At a glance": (
        Panel(
            "Degraded LRAs", "LRAs that miss their target now.",
            (Query(f'sum(perphd_lra_health{{{_HOST},health="degraded"}}) or vector(0)', ""),),
            width=4, kind="stat",
        ),
        Panel(
            "Unreachable targets", "LRAs whose target no setting is predicted to meet.",
            (Query(f"count(perphd_lra_target_reachable{{{_HOST}}} == 0) or vector(0)", ""),),
            width=4, kind="stat",
        ),
        Panel(
            "Hosts that enforce", "Hosts whose general mode is enforce.",
            (Query(f"sum(perphd_enforcing{{{_HOST}}})", ""),), width=4, kind="stat", is_bad=False,
        ),
        Panel(
            "Pauses", "Pauses in force.",
            (Query(f"sum(perphd_pauses{{{_HOST}}})", ""),), width=4, kind="stat",
        ),
        Panel(
            "Conflicts", "Kernel settings that are left to another writer.",
            (Query(f"sum(perphd_conflicts{{{_HOST}}})", ""),), width=4, kind="stat",
        ),
        Panel(
            "Problems", "Conditions that need an operator.",
            (Query(f"sum(perphd_problems{{{_HOST}}})", ""),), width=4, kind="stat",
        ),
    ),
    "LRAs": (
        Panel(
            "Performance / target", "At 1 and above the target is met.",
            (Query(f"perphd_lra_score_ratio{{{_LRA}}}", "{{workload}}"),), limit=1.0,
        ),
        Panel(
            "Time below target", "Share of the last hour.",
            (Query(f"perphd:lra_below_target:ratio_rate1h{{{_LRA}}}", "{{workload}}"),),
            unit="percentunit", limit=0.05,
        ),
        Panel(
            "Work and its target", "Work per second, by the signal that is judged.",
            (
                Query(f"perphd_lra_work_rate{{{_LRA}}}", "{{workload}}"),
                Query(f"perphd_lra_work_rate_target{{{_LRA}}}", "{{workload}} target"),
            ),
        ),
        Panel(
            "Delay and its target", "Latency, or waiting for a CPU per unit of work.",
            (
                Query(f"perphd_lra_delay_seconds{{{_LRA}}}", "{{workload}}"),
                Query(f"perphd_lra_delay_target_seconds{{{_LRA}}}", "{{workload}} target"),
            ),
            unit="s",
        ),
        Panel(
            "Health", "Share of the time in each health.",
            (Query(f"perphd:lra_health:ratio_rate1h{{{_LRA}}}", "{{workload}} {{health}}"),),
            unit="percentunit",
        ),
        Panel(
            "Short of", "The resource that an LRA is short of.",
            (Query(f"perphd_lra_contended{{{_LRA}}}", "{{workload}} {{resource}}"),),
        ),
        Panel(
            "Pressure", "Share of the time in which some of its tasks were stalled.",
            (
                Query(
                    f'rate(perphd_workload_pressure_seconds_total{{{_LRA},share="some"}}[$__rate_interval])',
                    "{{workload}} {{resource}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Without protection", "In mode observe: time in which enforce would have protected the LRA.",
            (Query(f"rate(perphd_lra_unprotected_seconds_total{{{_LRA}}}[$__rate_interval])", "{{workload}}"),),
            unit="percentunit",
        ),
    ),
    "The host and batch": (
        Panel(
            "CPU by workload", "Cores, with what nobody declared.",
            (
                Query(f"perphd:workload_cpu_cores:rate5m{{{_HOST}}}", "{{workload}}"),
                Query(f"perphd_host_undeclared_cpu_cores{{{_HOST}}}", "undeclared {{group}}"),
            ),
            unit="cores", stacked=True,
        ),
        Panel(
            "Batch: given and wanted", "Cores that batch uses, and uses or waits for.",
            (
                Query(f"perphd_batch_given_cores{{{_HOST}}}", "{{workload}} given"),
                Query(f"perphd_batch_wanted_cores{{{_HOST}}}", "{{workload}} wanted"),
            ),
            unit="cores",
        ),
        Panel(
            "Memory", "Memory charged to each workload.",
            (Query(f"perphd_workload_memory_bytes{{{_HOST}}}", "{{workload}}"),), unit="bytes",
        ),
        Panel(
            "Busy CPUs", "Share of the CPUs that workloads may be given.",
            (Query(f"perphd:host_cpu_busy:ratio_rate5m{{{_HOST}}}", "{{instance}}"),),
            unit="percentunit", limit=1.0,
        ),
    ),
    "What perphd does": (
        Panel(
            "CPUs in force", "Logical CPUs that perphd keeps a workload on.",
            (Query(f"perphd_in_force_cpus{{{_HOST}}}", "{{workload}}"),),
        ),
        Panel(
            "CPU weight in force", "0 is the idle class.",
            (Query(f"perphd_in_force_cpu_weight{{{_HOST}}}", "{{workload}}"),),
        ),
        Panel(
            "Cache ways in force", "Ways of each last-level cache.",
            (Query(f"perphd_in_force_llc_ways{{{_HOST}}}", "{{workload}} cache {{domain}}"),),
        ),
        Panel(
            "Memory bandwidth in force", "Share of each cache's bandwidth.",
            (
                Query(
                    f"perphd_in_force_memory_bandwidth_ratio{{{_HOST}}}", "{{workload}} cache {{domain}}"
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Decisions", "Changes per hour. In mode observe they would have been made.",
            (
                Query(
                    f"sum by (action, mode) (increase(perphd_decisions_total{{{_LRA}}}[1h]))", "{{action}} ({{mode}})"
                ),
            ),
        ),
        Panel(
            "Outcomes", "Judged changes per hour.",
            (Query(f"sum by (result) (increase(perphd_outcomes_total{{{_LRA}}}[1h]))", "{{result}}"),),
        ),
        Panel(
            "Writes", "Kernel writes per hour.",
            (
                Query(
                    f"sum by (knob, result) (increase(perphd_writes_total{{{_HOST}}}[1h]))", "{{knob}} {{result}}"
                ),
            ),
        ),
        Panel(
            "Limited", "Settings that are wanted and not fully in force.",
            (Query(f"perphd_limited{{{_HOST}}}", "{{workload}} {{knob}}"),),
        ),
    ),
    "Forecasts (with [forecast] enabled)": (
        Panel(
            "CPU and its bound", "Use, and the greatest use of the next minute with 99 %.",
            (
                Query(f"perphd:workload_cpu_cores:rate5m{{{_HOST}}}", "{{workload}}"),
                Query(f'perphd_forecast_p99{{{_HOST},series="cpu_usage_cores"}}', "{{workload}} at most"),
            ),
            unit="cores",
        ),
        Panel(
            "Working set and its bound", "Use, and the greatest use of the next minute with 99 %.",
            (
                Query(f"perphd_workload_memory_working_set_bytes{{{_HOST}}}", "{{workload}}"),
                Query(
                    f'perphd_forecast_p99{{{_HOST},series="memory_working_set_bytes"}}', "{{workload}} at most"
                ),
            ),
            unit="bytes",
        ),
        Panel(
            "Peak of the host's CPU use", "Of the next hour, by each predictor and by the one that is picked.",
            (
                Query(f'perphd_host_peak{{{_HOST},resource="cpu"}}', "picked"),
                Query(f'perphd_host_peak_predicted{{{_HOST},resource="cpu"}}', "{{predictor}}"),
                Query(f"perphd_host_cpus{{{_HOST}}}", "CPUs"),
            ),
            unit="cores",
        ),
        Panel(
            "Coverage", "Share of recent values that the 99 % bound covered.",
            (Query(f"perphd_forecast_covered_ratio{{{_HOST}}}", "{{workload}} {{series}}"),),
            unit="percentunit", limit=0.99,
        ),
    ),
    "perphd itself": (
        Panel(
            "CPU", "Of one CPU.",
            (
                Query(
                    f"rate(process_cpu_seconds_total{{{_HOST}}}[$__rate_interval])"
                    " and on (instance, job) perphd_info",
                    "{{instance}}",
                ),
            ),
            unit="percentunit", width=8,
        ),
        Panel(
            "Memory", "Resident.",
            (
                Query(
                    f"process_resident_memory_bytes{{{_HOST}}} and on (instance, job) perphd_info",
                    "{{instance}}",
                ),
            ),
            unit="bytes", width=8,
        ),
        Panel(
            "Duration of a round, p99", "Sampling, deciding and writing.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) "
                    f"(rate(perphd_tick_duration_seconds_bucket{{{_HOST}}}[$__rate_interval])))",
                    "{{instance}}",
                ),
            ),
            unit="s", width=8,
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return board(
        "perphd",
        "perphd",
        "Long-running applications and batch on hosts with perphd.",
        ROWS,
        _variables(),
        [_changes()],
    )


def board(
    uid: str,
    title: str,
    description: str,
    rows: Mapping[str, Sequence[Panel]],
    variables: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A dashboard with these rows of panels, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for heading, row in rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
                "panels": [],
            }
        )
        y, x = y + 1, 0
        height = 4 if row[0].kind == "stat" else _HEIGHT
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            grid = {"h": height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, grid))
            x += panel.width
        y += height
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["perphd"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": list(variables)},
        "annotations": {"list": list(annotations)},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    custom: dict[str, Any] = {}
    if panel.kind == "stat" and panel.is_bad:
        steps.append({"color": "red", "value": 1})
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
        custom["thresholdsStyle"] = {"mode": "line"}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {"legend": {"showLegend": panel.kind == "timeseries", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for n, query in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        DATA_SOURCE,
        values_of("instance", "Host", "label_values(perphd_info, instance)"),
        values_of("lra", "LRA", f"label_values(perphd_lra_health{{{_HOST}}}, workload)"),
    ]


def values_of(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable with the values that this query returns."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _changes() -> dict[str, Any]:
    return {
        "name": "Changes",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": f"changes(perphd_last_change_timestamp_seconds{{{_HOST}}}[1m]) > 0",
        "titleFormat": "{{workload}}: settings changed",
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
