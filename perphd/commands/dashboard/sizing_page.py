"""The sizing page: the data of perphctl size and headroom, as tables and as numbers for bars."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from perphd.commands.base import Out
from perphd.commands.dashboard.shown_parts import shown
from perphd.commands.render_sizing import amount, headroom_parts
from perphd.commands.sizing import (
    HostHeadroom,
    WorkloadSize,
    headroom_of,
    read_store,
    sizes_of,
    stale,
)
from perphd.domain.reading import Reading, Unavailable, available
from perphd.sizing.recommendation import Recommendation
from perphd.sizing.shaper import Resource

LAST_S: Final = 7 * 86_400.0
KEPT_S: Final = 60.0
"""Seconds for which a page is reused; forecasts cover one window of 60 s, so more frequent updates would show nothing
new.
"""
COLUMNS: Final = (
    "WORKLOAD", "RESERVED", "NOW", "P50", "P95", "P99", "MAX", "NEXT 60 S", "RECOMMENDED", "RECLAIMABLE",
)  # fmt: skip
_TITLES: Final = {Resource.CPU: "CPU", Resource.MEMORY: "Memory"}


class SizingPage:
    """Computes the page in a thread, at most once a minute."""

    def __init__(self, socket: str) -> None:
        self._out = Out(socket, as_json=True)
        self._turn = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None

    async def read(self) -> dict[str, Any]:
        """The page's data. Raises PerphError if the store cannot be read."""
        async with self._turn:
            now_s = time.monotonic()
            if self._kept is None or now_s - self._kept[0] > KEPT_S:
                self._kept = (now_s, await asyncio.to_thread(self._make))
            return self._kept[1]

    def _make(self) -> dict[str, Any]:
        place, found = read_store(self._out, None, LAST_S, None)
        sizes = sizes_of(place, found)
        hosts = [headroom_of(place, found, resource, None) for resource in Resource]
        return page(sizes, hosts, found.ended, stale(found)) | {"newest_s": found.newest_s}


def page(
    sizes: list[WorkloadSize], hosts: list[HostHeadroom], ended: tuple[str, ...], late: str
) -> dict[str, Any]:
    """The page's data. ``ended``: workloads without recent samples; ``late``: why the data are not current."""
    notes = [f"Not sampled in the last hour: {', '.join(ended)}."] if ended else []
    return {
        "resources": [_resource(sizes, resource) for resource in Resource],
        "headroom": shown(headroom_parts(hosts, ""), "Peak of the host"),
        "notes": [*notes, *([f"{late}."] if late else [])],
    }


def _resource(sizes: list[WorkloadSize], resource: Resource) -> dict[str, Any]:
    found = [(each.workload, item) for each in sizes for item in each.resources if item.resource is resource]
    return {
        "title": _TITLES[resource],
        "table": {
            "caption": f"{_TITLES[resource]}: greatest use of each minute of the last week, and sizes",
            "columns": list(COLUMNS),
            "right": list(range(1, len(COLUMNS))),
            "rows": [[{"text": text, "tone": ""} for text in _row(name, item)] for name, item in found],
        },
        "bars": [_bar(name, item) for name, item in found],
    }


def _row(name: str, item: Recommendation) -> tuple[str, ...]:
    of = item.resource.value
    used, ahead = item.used, item.outlook.next_window
    numbers = (
        ["–"] * 5
        if isinstance(used, Unavailable)
        else [amount(v, of) for v in (used.now, used.p50, used.p95, used.p99, used.greatest)]
    )
    following = (
        f"{amount(ahead.mean, of)} to {amount(ahead.p99, of)}" if not isinstance(ahead, Unavailable) else "–"
    )
    sized = (amount(v, of) if available(v) else "–" for v in (item.recommended, item.reclaimable))
    return (name, _reserved(item), *numbers, following, *sized)


def _reserved(item: Recommendation) -> str:
    of, held = item.resource.value, item.reservation
    if not isinstance(held.amount, Unavailable):
        return amount(held.amount, of)
    if held.least:
        return f"min {amount(held.least, of)}"
    return "unknown" if held.amount.reason.startswith("unknown") else "none set"


def _bar(name: str, item: Recommendation) -> dict[str, Any]:
    """The numbers of a workload's bar, in the resource's unit; null where missing."""
    of, used, ahead = item.resource.value, item.used, item.outlook.next_window
    marks: dict[str, Reading] = {
        "reserved": item.reservation.amount,
        "recommended": item.recommended,
    }
    spans: dict[str, float | None] = {"now": None, "p50": None, "p95": None, "p99": None, "greatest": None}
    if not isinstance(used, Unavailable):
        spans = {key: getattr(used, key) for key in spans}
    known = {key: value if available(value) else None for key, value in marks.items()}
    following = {"low": ahead.mean, "high": ahead.p99} if not isinstance(ahead, Unavailable) else None
    texts = {key: amount(value, of) for key, value in (known | spans).items() if value is not None}
    return {
        "workload": name,
        **spans,
        **known,
        "next": following,
        "texts": texts,
        "next_text": f"{amount(ahead.mean, of)} to {amount(ahead.p99, of)}"
        if not isinstance(ahead, Unavailable)
        else "",
        "reason": f"{item.reason}; confidence {item.confidence}"
        if available(item.recommended)
        else item.reason,
        "missing": item.recommended.reason if isinstance(item.recommended, Unavailable) else "",
    }
