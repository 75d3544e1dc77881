"""What the dashboard asks: the daemon, in threads, and the store.

The store is read from its file or, where this user may not read that, through the daemon's queries. Either way a query
is one SELECT, read-only and bounded in time. The daemon also bounds the CPU time of all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from perphd.commands.dashboard.picture import picture
from perphd.control.client import Client, Refused
from perphd.domain.errors import PerphError
from perphd.domain.status import AgentStatus
from perphd.domain.topology import Topology
from perphd.domain.wire import decode
from perphd.monitor.query import run_query

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


Rows: TypeAlias = list[list[Any]]
Query: TypeAlias = Callable[[str], Rows]
"""Answers one SELECT. Raises PerphError."""

MAX_ROWS: Final = 100_000
QUERY_S: Final = 30.0
"""For one query on the file, in a thread of this process."""


class StoreSide:
    """Queries on the store of one daemon, one after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path: str | None = None
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Query], Any]) -> Any:
        """What ``work`` makes of its queries, in a thread. Raises PerphError."""
        async with self._turn:
            return await asyncio.to_thread(work, self.query)

    def query(self, sql: str) -> Rows:
        """The rows of one SELECT. Blocks."""
        if self._path is None:
            self._path = self._where()
        if self._path:
            return [list(row) for row in run_query(self._path, sql, MAX_ROWS, QUERY_S).rows]
        try:
            answer = self._client.send("POST", "query", {"sql": sql, "limit": MAX_ROWS})
        except Refused as exc:
            raise PerphError(f"the daemon's store: {exc}") from exc
        return list(answer["rows"])

    def _where(self) -> str:
        """The file, or nothing where it cannot be read by this user."""
        path = str(self._client.get("config")["store_path"])
        try:
            with open(path, "rb"):
                return path
        except OSError:
            return ""


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"
