"""The daemon as the dashboard asks it: requests in threads, answers as JSON for the page."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from perphd.control.client import Client
from perphd.control.dashboard.picture import picture
from perphd.control.wire import decode
from perphd.domain.status import AgentStatus
from perphd.domain.topology import Topology

TOPOLOGY_S: Final = 60.0
"""The host's processors are asked for again after this long: CPUs come and go."""
AT_ONCE: Final = 4
"""Requests to the daemon at a time."""


class DaemonSide:
    """Asks one daemon."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._places = asyncio.Semaphore(AT_ONCE)
        self._topology: tuple[float, Topology] | None = None

    async def get(self, route: str, **query: str | int | None) -> Any:
        """The answer to a GET of ``/v1/ROUTE``. Raises as ``Client.send``."""
        async with self._places:
            return await asyncio.to_thread(self.client.get, route, **query)

    async def send(self, method: str, route: str, body: dict[str, Any]) -> Any:
        """The answer to a request that changes something. Raises as ``Client.send``."""
        async with self._places:
            return await asyncio.to_thread(self.client.send, method, route, body)

    async def status(self) -> tuple[AgentStatus, float, float]:
        """The agent's status, its monotonic clock, and what turns that into seconds since the epoch."""
        data = await self.get("status")
        clock = data["clock"]
        now_s = float(clock["monotonic_s"])
        return decode(AgentStatus, data), now_s, float(clock["unix_s"]) - now_s

    async def topology(self) -> Topology:
        """The host's processors."""
        now_s = time.monotonic()
        if self._topology is None or now_s - self._topology[0] > TOPOLOGY_S:
            data = await self.get("doctor")
            self._topology = (now_s, decode(Topology, data["topology"], "topology"))
        return self._topology[1]

    async def picture(self) -> dict[str, Any]:
        """What the page shows now."""
        topology = await self.topology()
        status, now_s, offset_s = await self.status()
        return picture(status, topology, now_s, offset_s)
