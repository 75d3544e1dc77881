"""Duration of the extender's answers to the scheduler's calls on a large fleet, over HTTP, in a separate process.

    python -m tools.cluster.payloads [--nodes 5000] [--calls 200]

Calls name their candidates (``nodeCacheCapable: true``) or contain whole nodes, as recorded from kube-scheduler 1.36 on
nodes without kubelets. The scheduler gives an extender ``httpTimeout``: 1 s in the configuration that is shipped.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp
import click
import numpy as np
import psutil

from perphd.cluster.document import (
    CacheHeadroom,
    CopperRoom,
    NodeAmounts,
    NodeDocument,
    NodeLra,
    ResourceForecast,
    UnitCost,
)
from perphd.domain.decision import Cause, Health
from perphd.domain.reading import NOT_MEASURED
from perphd.domain.wire import encode
from perphd.domain.workload import Mode
from tools.cluster.control_plane import free_ports

GIB: Final = float(1 << 30)
_COMPACT: Final = (",", ":")
RECORDED: Final = Path(__file__).with_name("recorded_filter.json")


def document(chance: random.Random, made_unix_s: float) -> NodeDocument:
    """A node with two LRAs and some or little headroom."""
    used, free = chance.uniform(1.0, 15.9), chance.uniform(0.0, 8.0)
    amounts, left = NodeAmounts(used, 8 * GIB), NodeAmounts(free, 32 * GIB)
    lras = tuple(
        NodeLra(
            name,
            Health.HEALTHY,
            Cause.NONE,
            1.1,
            None,
            (UnitCost("cpu", "one core", chance.uniform(0, 0.1)),),
            9.0,
        )
        for name in ("db", "cache")
    )
    forecast = (
        ResourceForecast("cpu", used, 0.5, used + 1.2, used + 2.0),
        ResourceForecast("memory", 8 * GIB, GIB, 10 * GIB, 11 * GIB),
    )
    cache = CacheHeadroom(NOT_MEASURED, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED)
    room = CopperRoom(left, NodeAmounts(0.0, 0.0), left, NodeAmounts(1.0, GIB), "forecast")
    whole = NodeAmounts(16.0, 64 * GIB)
    return NodeDocument(
        1, made_unix_s, 600.0, Mode.OBSERVE, 0.8, whole, amounts, amounts, forecast, room, lras, (), (), cache
    )


@click.command()
@click.option("--nodes", type=click.IntRange(1, 20000), default=5000, show_default=True)
@click.option("--calls", type=click.IntRange(10, 10000), default=200, show_default=True)
@click.option("--policy", default="optum", show_default=True)
def main(nodes: int, calls: int, policy: str) -> None:
    """Measure and print p50, p99 and the longest call."""
    with tempfile.TemporaryDirectory(prefix="perphd-payloads-") as folder:
        chance, now = random.Random(1), time.time()
        for i in range(nodes):
            text = json.dumps(encode(document(chance, now)))
            Path(folder, f"node-{i}.json").write_text(text)
        port = free_ports(1)[0]
        command = [
            sys.executable, "-m", "perphd.adapters.kubernetes.extender_program", "run", "--policy", policy,
            "--documents", folder, "--period", "60", "--listen", f"127.0.0.1:{port}", "--log-level", "warning",
        ]  # fmt: skip
        process = subprocess.Popen(command)
        try:
            asyncio.run(_measured(f"http://127.0.0.1:{port}", psutil.Process(process.pid), nodes, calls))
        finally:
            process.terminate()
            process.wait()


async def _measured(url: str, extender: psutil.Process, nodes: int, calls: int) -> None:
    recorded = json.loads(RECORDED.read_text())
    names = [f"node-{i}" for i in range(nodes)]
    by_name = json.dumps({"Pod": recorded["Pod"], "Nodes": None, "NodeNames": names}, separators=_COMPACT)
    items = []
    for name in names:
        item = copy.deepcopy(recorded["Nodes"]["items"][0])
        item["metadata"]["name"] = name
        items.append(item)
    nodes_call = {"Pod": recorded["Pod"], "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    whole = json.dumps(nodes_call, separators=_COMPACT)
    limit = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=limit) as http:
        for _ in range(1200):
            try:
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        for form, body, count in (("names", by_name, calls), ("whole nodes", whole, max(10, calls // 10))):
            for verb in ("filter", "prioritize"):
                times = []
                before = sum(extender.cpu_times()[:2])
                for _ in range(count):
                    start = time.perf_counter()
                    async with http.post(f"{url}/{verb}", data=body) as answer:
                        text = await answer.read()
                    times.append(1e3 * (time.perf_counter() - start))
                    assert answer.status == 200, text[:300]
                    answered = json.loads(text)
                    kept = (
                        answered["NodeNames"] or answered["Nodes"]["items"] if verb == "filter" else answered
                    )
                    assert len(kept) > nodes // 10, "too few nodes are left to measure an answer"
                cpu_ms = 1e3 * (sum(extender.cpu_times()[:2]) - before) / count
                p50, p99 = np.quantile(times, (0.5, 0.99))
                print(
                    f"{nodes} nodes as {form} ({len(body) / 1e6:.1f} MB), {verb}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
                    f"longest {max(times):.0f} ms of {count} calls; CPU time of the extender {cpu_ms:.0f} ms a call"
                )
        async with http.get(f"{url}/fleet") as answer:
            for verb, each in (await answer.json())["calls"].items():
                if each["calls"]:
                    p50_ms, p99_ms = 1e3 * each["p50_s"], 1e3 * each["p99_s"]
                    print(f"{verb}, in the process alone: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms")


if __name__ == "__main__":
    main()
