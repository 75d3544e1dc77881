"""Data sources of the dashboard: the daemon, called in threads, and the store.

The store is read from its file or, if this user may not read it, through the daemon's queries. In both cases
a query is one SELECT, read-only and limited in time. The daemon also limits the CPU time of all queries.
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
"""Seconds after which the host's processors are read again, since CPUs can be hot-plugged."""
AT_ONCE: Final = 4
"""Maximum number of concurrent requests to the daemon."""


class DaemonSide:
    """Queries one daemon."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._places = asyncio.Semaphore(AT_ONCE)
        self._topology: tuple[float, Topology] | None = None

    async def get(self, route: str, **query: str | int | None) -> Any:
        """The answer to a GET of ``/v1/ROUTE``. Raises the errors of ``Client.send``."""
        async with self._places:
            return await asyncio.to_thread(self.client.get, route, **query)

    async def send(self, method: str, route: str, body: dict[str, Any]) -> Any:
        """The answer to a changing request. Raises the errors of ``Client.send``."""
        async with self._places:
            return await asyncio.to_thread(self.client.send, method, route, body)

    async def status(self) -> tuple[AgentStatus, float, float]:
        """The agent's status, its monotonic clock, and that clock's offset to seconds since the epoch."""
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
        """The page's present data."""
        topology = await self.topology()
        status, now_s, offset_s = await self.status()
        return picture(status, topology, now_s, offset_s)


Rows: TypeAlias = list[list[Any]]
Query: TypeAlias = Callable[[str], Rows]
"""Runs one SELECT. Raises PerphError if the query is refused or fails."""

MAX_ROWS: Final = 100_000
QUERY_S: Final = 30.0
"""Time limit in seconds for one query on the file, in a thread of this process."""


class StoreSide:
    """Queries on the store of one daemon, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path: str | None = None
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[Query], Any]) -> Any:
        """Run ``work`` with a query function, in a thread. Raises PerphError if a query is refused or fails."""
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
        """The store's file; empty if this user cannot read it."""
        path = str(self._client.get("config")["store_path"])
        try:
            with open(path, "rb"):
                return path
        except OSError:
            return ""


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
