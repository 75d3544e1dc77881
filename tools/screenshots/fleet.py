"""``python -m tools.screenshots.fleet FOLDER --hosts 6``: an extender that knows simulated hosts.

LRAs and copper pods run on them. The documents are those of perphd's real agent on each host. The extender answers one
request of a copper pod at the start, so that there is a placement to explain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from pathlib import Path
from random import Random
from typing import Any, Final

from aiohttp import ClientSession, web

from perphd.adapters.kubernetes.documents import DocumentCache
from perphd.adapters.kubernetes.extender import ExtenderServer
from perphd.cluster.document import NodeDocument
from perphd.domain.workload import Mode
from tools.cluster.hosts import COPPER_KINDS, LRA_KINDS, SimulatedNode

PAST_S: Final = 90
"""Virtual seconds that every host lives before the extender answers."""
PUBLISHED_S: Final = 5
ENDLESS_S: Final = 1e6
POD: Final = {
    "metadata": {"name": "pi-7x9", "namespace": "batch", "labels": {"perphd.io/band": "copper"}},
    "spec": {
        "containers": [{"resources": {"requests": {"perphd.io/copper-cpu": "4000", "perphd.io/copper-memory": "4Gi"}}}]
    },
}  # fmt: skip


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=6)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    asyncio.run(_serve(given.folder, given.hosts))


async def filled(folder: Path, hosts: int, random: Random) -> list[SimulatedNode]:
    """Hosts with one LRA of each kind and a varying number of copper pods."""
    nodes = [SimulatedNode(f"worker-{n + 1}", Mode.ENFORCE, n, folder) for n in range(hosts)]
    for node in nodes:
        for kind in LRA_KINDS:
            await node.start_lra(f"{kind}-{node.name}", kind, random.uniform(0.4, 1.0))
        for n in range(random.randrange(1, 4)):
            node.start_copper(f"pi-{n}-{node.name}", random.choice(COPPER_KINDS), 2, ENDLESS_S)
    return nodes


async def _serve(folder: Path, hosts: int) -> None:
    nodes, cache = await filled(folder, hosts, Random(1)), DocumentCache()
    cache.keep_only({each.name for each in nodes})
    now_s = 0
    for now_s in range(1, PAST_S + 1):
        await _tick(nodes, now_s)
    await _publish(nodes, cache)
    runner = web.AppRunner(ExtenderServer(cache, "optum").app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    call: dict[str, Any] = {"Pod": POD, "Nodes": None, "NodeNames": [each.name for each in nodes]}
    async with ClientSession() as session:
        for verb in ("filter", "prioritize"):
            async with session.post(f"{url}/{verb}", data=json.dumps(call)) as answer:
                answer.raise_for_status()
    print(url, flush=True)
    while True:
        await asyncio.sleep(1.0)
        now_s += 1
        await _tick(nodes, now_s)
        if now_s % PUBLISHED_S == 0:
            await _publish(nodes, cache)


async def _tick(nodes: list[SimulatedNode], now_s: int) -> None:
    for node in nodes:
        await node.tick(float(now_s))


async def _publish(nodes: list[SimulatedNode], cache: DocumentCache) -> None:
    for node in nodes:
        document = await node.document()

        def given(document: NodeDocument = document) -> NodeDocument:
            return document

        cache.put(node.name, given)


if __name__ == "__main__":
    main()
