"""Queries the indicators of each proposed LRA as the daemon does, and reports what is missing. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perphd.agent.proposal import Proposed
from perphd.domain.errors import PerphError
from perphd.domain.reading import Awaited, Reading, Unavailable, available
from perphd.domain.workload import SliSpec
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.monitor.sli import OPTIONS, open_source

BETWEEN_S = 1.2
"""Seconds between two queries: a rate needs both, and PostgreSQL updates its statistics once a second."""
_WITHIN_S = 15.0
_ANSWER_S = 6.0
"""Time-out of each query in seconds: the first connects and loads the client's library, possibly on a busy host."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of an LRA's indicator. If ``rate_per_s`` is Unavailable, it holds the reason for the failure."""

    name: str
    source: str
    rate_per_s: Reading
    latency_ms: Reading


async def measure(items: Sequence[Proposed], hierarchies: Hierarchies) -> tuple[Measured, ...]:
    """Query all proposed LRAs with a server as indicator, concurrently.

    The source tcp is skipped, because it would attach programs to control groups.
    """
    asked = [item for item in items if item.spec.sli is not None and item.spec.sli.source != "tcp"]
    return tuple(await asyncio.gather(*(_ask(item, hierarchies) for item in asked)))


async def _ask(item: Proposed, hierarchies: Hierarchies) -> Measured:
    assert item.spec.sli is not None
    spec, name = with_what_exists(item.spec.sli), item.spec.name
    try:
        source = open_source(spec, item.cgroup, hierarchies)
    except PerphError as exc:
        return Measured(name, spec.source, Unavailable(str(exc)), Unavailable(str(exc)))
    try:
        async with asyncio.timeout(_WITHIN_S):
            await source.read(time.monotonic())
            await asyncio.sleep(BETWEEN_S)
            reading = await source.read(time.monotonic())
    except TimeoutError:
        silent = Unavailable(f"no answer within {_WITHIN_S:g} s")
        return Measured(name, spec.source, silent, silent)
    finally:
        await source.close()
    return Measured(name, spec.source, reading.work_rate_per_s, reading.latency_p95_ms)


def answers(measured: Measured) -> bool:
    """True if the source answered, even if its next reading is not due yet."""
    return available(measured.rate_per_s) or isinstance(measured.rate_per_s, Awaited)


def with_what_exists(spec: SliSpec) -> SliSpec:
    """The source as init queries it: without tcp, with a longer time-out, and without a password file that does not
    exist yet, because some servers admit root without a password.
    """
    path = spec.get("password_file")
    missing = {"password_file"} if path and not Path(path).exists() else set()
    without = missing | ({"latency"} if spec.get("latency") == "tcp" else set())
    options = {key: value for key, value in spec.options if key not in without}
    if any(option.key == "timeout_s" for option in OPTIONS[spec.source]):
        options.setdefault("timeout_s", f"{_ANSWER_S:g}")
    return replace(spec, options=tuple(sorted(options.items())))
