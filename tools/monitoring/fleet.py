"""Writes packaging/monitoring/perphd-fleet.json, the board of a fleet: ``python -m tools.monitoring.fleet``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tools.monitoring.dashboard import DATA_SOURCE, Panel, Query, board, values_of
from tools.monitoring.dashboard import TARGET as HOST_TARGET

TARGET = HOST_TARGET.with_name("perphd-fleet.json")
_NODE = 'node=~"$node"'
# Every replica of the extender knows all nodes, so one of them suffices.
_ONE = "max by (node)"
_ON_TARGET = 'health=~"healthy|overprovisioned"'
_RATE = "[$__rate_interval]"

ROWS: dict[str, Sequence[Panel]] = {
    "At a glance": (
        Panel(
            "Nodes", "Nodes with a fresh document.",
            (Query('max(perphd_extender_nodes{state="fresh"})', ""),), width=4, kind="stat", is_bad=False,
        ),
        Panel(
            "Stale nodes", "Nodes whose document is older than its time to live.",
            (Query('max(perphd_extender_nodes{state="stale"})', ""),), width=4, kind="stat",
        ),
        Panel(
            "Unreadable documents", "Nodes whose last document could not be read.",
            (Query('max(perphd_extender_nodes{state="unreadable"})', ""),), width=4, kind="stat",
        ),
        Panel(
            "Degraded LRAs", "LRAs below their target.",
            (Query('sum(max by (node) (perphd_fleet_lras{health="degraded"})) or vector(0)', ""),),
            width=4, kind="stat",
        ),
        Panel(
            "LRAs", "All LRAs of nodes whose document is known.",
            (Query("sum(max by (node, health) (perphd_fleet_lras))", ""),), width=4, kind="stat", is_bad=False,
        ),
        Panel(
            "Copper may use", "CPUs that nodes offer to copper.",
            (Query(f"sum({_ONE} (perphd_fleet_copper_offered_cpus))", ""),),
            unit="cores", width=4, kind="stat", is_bad=False,
        ),
    ),
    "Placement": (
        Panel(
            "Decisions", "Filter calls per second by the pod's band, and whether a node was left.",
            (Query(f"sum by (band, result) (rate(perphd_extender_decisions_total{_RATE}))", "{{band}} {{result}}"),),
            unit="reqps",
        ),
        Panel(
            "Pods bound", "Copper pods that the extender bound, or was refused.",
            (Query(f"sum by (result) (rate(perphd_extender_binds_total{_RATE}))", "{{result}}"),), unit="reqps",
        ),
        Panel(
            "Duration of calls", "One call in a hundred takes longer. kube-scheduler waits 1 s.",
            (
                Query(
                    "histogram_quantile(0.99, sum by (verb, le) "
                    f"(rate(perphd_extender_call_seconds_bucket{_RATE})))", "{{verb}}",
                ),
            ),
            unit="s", limit=1.0,
        ),
        Panel(
            "Invalid calls", "Calls that the extender could not parse.",
            (Query(f"sum by (verb) (rate(perphd_extender_call_errors_total{_RATE}))", "{{verb}}"),), unit="reqps",
        ),
    ),
    "Nodes": (
        Panel(
            "CPUs for copper", "Offered by all nodes, and used.",
            (
                Query(f"sum({_ONE} (perphd_fleet_copper_offered_cpus{{{_NODE}}}))", "offered"),
                Query(f"sum({_ONE} (perphd_fleet_copper_used_cpus{{{_NODE}}}))", "used"),
            ),
            unit="cores",
        ),
        Panel(
            "Memory for copper", "Offered by all nodes, and used.",
            (
                Query(f"sum({_ONE} (perphd_fleet_copper_offered_memory_bytes{{{_NODE}}}))", "offered"),
                Query(f"sum({_ONE} (perphd_fleet_copper_used_memory_bytes{{{_NODE}}}))", "used"),
            ),
            unit="bytes",
        ),
        Panel(
            "CPU use", "Share of each node's CPUs that all workloads use.",
            (
                Query(
                    f"{_ONE} (perphd_fleet_used_cpus{{{_NODE}}}) / {_ONE} (perphd_fleet_node_cpus{{{_NODE}}})",
                    "{{node}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Memory use", "Share of each node's memory that all workloads use.",
            (
                Query(
                    f"{_ONE} (perphd_fleet_used_memory_bytes{{{_NODE}}}) "
                    f"/ {_ONE} (perphd_fleet_node_memory_bytes{{{_NODE}}})", "{{node}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "LRAs on target", "Share of each node's LRAs that are healthy or overprovisioned.",
            (
                Query(
                    f"sum by (node) (max by (node, health) (perphd_fleet_lras{{{_NODE},{_ON_TARGET}}})) "
                    f"/ sum by (node) (max by (node, health) (perphd_fleet_lras{{{_NODE}}}))", "{{node}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Age of documents", "Since their arrival at the extender.",
            (Query(f"{_ONE} (perphd_fleet_node_age_seconds{{{_NODE}}})", "{{node}}"),), unit="s",
        ),
    ),
    "Publishers": (
        Panel(
            "Failed rounds", "Rounds in which something could not be published.",
            (Query(f'rate(perphd_publish_rounds_total{{result="failed"}}{_RATE})', "{{instance}}"),), unit="reqps",
        ),
        Panel(
            "Slots", "Room that extenders took and whose pods are not measured yet.",
            (Query("perphd_publish_slots", "{{instance}}"),),
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The board as Grafana imports it."""
    return board(
        "perphd-fleet",
        "perphd: fleet",
        "Nodes, placements and copper, as perphd-extender and perphd-publish see them.",
        ROWS,
        [DATA_SOURCE, values_of("node", "Node", "label_values(perphd_fleet_node_stale, node)")],
    )


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
