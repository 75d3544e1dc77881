"""The bench's results as report.json and report.md, compared with their budgets."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench import monitoring

CPU_BUDGET_PCT = 1.0
RSS_BUDGET_BYTES = 80 << 20
REACTION_BUDGET_MS = 20.0
_SHOWN_PACKAGES = 12


@dataclass(frozen=True, slots=True)
class Tick:
    """One number of workloads: mean and standard deviation in seconds, by phase; ``whole`` is the tick."""

    workloads: int
    phases: dict[str, tuple[float, float]]


def write(
    folder: Path,
    layout: str,
    ticks: list[Tick],
    whole: dict[str, Any] | None,
    reactions: list[dict[str, Any]],
    counted: dict[str, Any] | None = None,
) -> str:
    """Write both files and return the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    host = _host(layout)
    content = {
        "host": host,
        "budgets": {
            "cpu_pct": CPU_BUDGET_PCT,
            "rss_bytes": RSS_BUDGET_BYTES,
            "reaction_p99_ms": REACTION_BUDGET_MS,
        },
        "tick": [{"workloads": tick.workloads, "seconds_mean_stdev": tick.phases} for tick in ticks],
        "process": whole,
        "reaction": reactions,
        "monitoring": counted,
    }
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    markdown = "\n".join(
        [
            *(_host_line(host), "", *_tick_table(ticks), *_process_table(whole), *_reaction_table(reactions)),
            *monitoring.table(counted),
        ]
    )
    (folder / "report.md").write_text(markdown.rstrip() + "\n")
    return markdown


def _host(layout: str) -> dict[str, Any]:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpus": os.cpu_count(),
        "processor": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cgroups": layout,
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _host_line(host: dict[str, Any]) -> str:
    return (
        f"{host['cpus']} CPUs ({host['processor']}), Linux {host['kernel']}, {host['cgroups']} cgroups, "
        f"Python {host['python']}, load average {host['load_1min']} when the report was written."
    )


def _tick_table(ticks: list[Tick]) -> list[str]:
    if not ticks:
        return []
    names = list(ticks[0].phases)
    lines = [
        "One tick, milliseconds of wall time (mean ± standard deviation; every fifth workload is an LRA):",
        "",
        f"| workloads | {' | '.join(names)} |",
        "| ---: |" + " ---: |" * len(names),
    ]
    for tick in ticks:
        cells = [
            f"{1e3 * mean:.{3 if mean < 1e-4 else 2}f} ± {1e3 * spread:.{3 if mean < 1e-4 else 2}f}"
            for mean, spread in tick.phases.values()
        ]
        lines.append(f"| {tick.workloads} | {' | '.join(cells)} |")
    return [*lines, ""]


def _process_table(whole: dict[str, Any] | None) -> list[str]:
    if whole is None:
        return []
    imports = whole["imports"]
    packages = list(imports["packages_bytes"].items())[:_SHOWN_PACKAGES]
    made_of = ", ".join(
        f"{name} {size / 2**20:.1f}"
        for name, size in [("the bare interpreter", imports["bare_bytes"]), *packages]
    )
    return [
        f"The daemon as a process, {whole['workloads']} workloads at 1 Hz, over {whole['seconds']:.0f} s. Each has a "
        "process; batch's wake four times a second:",
        "",
        "| | measured | budget | |",
        "| --- | ---: | ---: | --- |",
        _row("CPU, share of one core", f"{whole['cpu_pct']:.2f} %", f"{CPU_BUDGET_PCT:g} %",
             whole["cpu_pct"] <= CPU_BUDGET_PCT),
        _row("resident memory (RSS)", _mib(whole["rss_bytes"]), _mib(RSS_BUDGET_BYTES),
             whole["rss_bytes"] <= RSS_BUDGET_BYTES),
        f"| RSS at its peak | {_mib(whole['rss_peak_bytes'])} | | |",
        f"| PSS | {_mib(whole['pss_bytes']) if whole['pss_bytes'] else 'not told by this kernel'} | | |",
        f"| threads, open files | {whole['threads']}, {whole['open_fds']} | | |",
        f"| from start until it answers | {whole['start_s']:.1f} s | | |",
        f"| ticks missed | {whole['missed_ticks']} | | |",
        "",
        f"Its memory after imports ({_mib(imports['total_bytes'])}) by package, MiB: {made_of}.",
        "",
    ]  # fmt: skip


def _reaction_table(reactions: list[dict[str, Any]]) -> list[str]:
    if not reactions:
        return []
    keys = {
        "decide p50": "decide_p50_ms",
        "plan p50": "plan_p50_ms",
        "apply p50": "apply_p50_ms",
        "p50": "p50_ms",
        "p99": "p99_ms",
        "max": "max_ms",
        "p99 without waits": "own_p99_ms",
    }
    lines = [
        "From detection to the last write, read back and journaled, in milliseconds:",
        "",
        f"| workloads | changes | writes each | {' | '.join(keys)} | budget p99 | |",
        "| ---: | ---: | ---: |" + " ---: |" * len(keys) + " ---: | --- |",
    ]
    for item in reactions:
        figures = " | ".join(f"{item[key]:.1f}" for key in keys.values())
        lines.append(
            f"| {item['workloads']} | {item['changes']} | {item['writes']:.0f} | {figures} "
            f"| {REACTION_BUDGET_MS:g} | {_verdict(item['p99_ms'] <= REACTION_BUDGET_MS)} |"
        )
    return [
        *lines,
        "",
        "*p99 without waits*: less what the process waited for a CPU or for the disk (run-queue delay, fsync),",
        "which is what other work on the same machine costs it.",
        "",
    ]


def _row(what: str, measured: str, budget: str, kept: bool) -> str:
    return f"| {what} | {measured} | {budget} | {_verdict(kept)} |"


def _verdict(kept: bool) -> str:
    return "kept" if kept else "**missed**"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
