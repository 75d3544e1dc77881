"""The tables of the trial bench."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """A row per kind of trial."""
    lines = [
        "| kind | trials | intervals | covered | median width | effect claimed | carry-over found | ended for harm "
        "| most enforced blocks until then |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in dict.fromkeys(result["kind"] for result in results):
        mine = [result for result in results if result["kind"] == kind]
        lines.append(f"| {kind} | {' | '.join(_cells(mine))} |")
    return "\n".join(lines) + "\n"


def coverage(results: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Number of intervals that contain the true effect, and of all intervals with a known truth, over completed trials.
    """
    known = [
        metric
        for result in results
        if not result["harm"]
        for metric in result["metrics"]
        if metric["truth_pct"] is not None
    ]
    covered = sum(metric["low_pct"] <= metric["truth_pct"] <= metric["high_pct"] for metric in known)
    return covered, len(known)


def _cells(results: Sequence[dict[str, Any]]) -> list[str]:
    covered, known = coverage(results)
    widths = sorted(m["high_pct"] - m["low_pct"] for r in results if not r["harm"] for m in r["metrics"])
    harmed = [result for result in results if result["harm"]]
    return [
        str(len(results)),
        str(known),
        f"{100 * covered / known:.1f} %" if known else "-",
        f"{widths[len(widths) // 2]:.1f} points" if widths else "-",
        _share(results, lambda r: any(m["claimed"] for m in r["metrics"])),
        _share(results, lambda r: any(m["carried_over"] for m in r["metrics"])),
        _share(results, lambda r: r["harm"]),
        _blocks(harmed),
    ]


def _share(results: Sequence[dict[str, Any]], is_so: Any) -> str:
    return f"{100 * sum(map(is_so, results)) / len(results):.1f} %"


def _blocks(harmed: Sequence[dict[str, Any]]) -> str:
    if not harmed:
        return "-"
    within = sum(result["enforced_blocks"] <= 2 for result in harmed)
    return f"{max(r['enforced_blocks'] for r in harmed)} ({100 * within / len(harmed):.1f} % within 2)"
