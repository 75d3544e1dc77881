"""Indicators of Redis and its forks: commands per second from INFO, and latency from LATENCY HISTOGRAM.

The histogram contains execution times, without the time that commands waited in the queue.
"""

from __future__ import annotations

from typing import Any, Final

from perphd.domain.reading import Unavailable
from perphd.domain.workload import SliSpec
from perphd.monitor.rates import WENT_BACKWARDS
from perphd.monitor.sli.mysql import database_reading
from perphd.monitor.sli.options import resolution_of, seconds, setting
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError, read_password
from perphd.monitor.sli.reading import SliReading
from perphd.monitor.sli.resolution import EXACT, Counted, CountWindow
from perphd.monitor.sli.server_latency import ServerLatency, Totals, of_redis

NO_REQUESTS: Final = (
    *("acl", "auth", "client", "command", "config", "hello", "info", "latency", "monitor", "slowlog"),
    *("blmove", "blmpop", "blpop", "brpop", "bzmpop", "bzpop", "psync", "replconf", "wait", "xread"),
)
"""Commands of operators and replicas, and blocking commands. Their execution times are not request latencies."""


class RedisSource(PolledSource):
    """Commands processed per second, exact at any moment; perphd's own commands are not counted."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("redis", seconds(spec, "timeout_s"), resolution_of(spec, EXACT))
        self._spec = spec
        self._client: Any = None
        self._window = CountWindow()
        self._own_commands = 0
        self._latency = ServerLatency() if setting(spec, "latency") == "server" else None

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        if self._client is None:
            self._client = self._connect()
        stats = await self._client.info("stats")
        at_s = answered_at()
        commands = stats.get("total_commands_processed")
        if not isinstance(commands, int):
            raise SliError("INFO stats has no total_commands_processed")
        counted = self._window.update(commands - self._own_commands, at_s, self.resolution)
        self._own_commands += 1  # the server counts the command after answering it
        latency, totals = self._latency, await self._histogram() if self._latency else None
        if counted.rate is WENT_BACKWARDS:
            counted = Counted(Unavailable("the server was restarted or its statistics were reset"))
        reading = database_reading(counted, self.resolution)
        return reading if latency is None or totals is None else latency.joined(reading, totals, at_s)

    async def _histogram(self) -> Totals | Unavailable:
        from redis.exceptions import ResponseError

        try:
            answer = await self._client.execute_command("LATENCY", "HISTOGRAM")
        except ResponseError as exc:  # before Redis 7, or not permitted; the result of INFO stays valid
            return Unavailable(f"LATENCY HISTOGRAM was refused: {exc}")
        self._own_commands += 1
        return of_redis(answer, NO_REQUESTS)

    def _connect(self) -> Any:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        where: dict[str, Any] = {"unix_socket_path": setting(self._spec, "socket")}
        if self._spec.get("host"):
            where = {"host": self._spec.get("host"), "port": int(setting(self._spec, "port"))}
        return redis.asyncio.Redis(
            **where,
            username=setting(self._spec, "user") or None,
            password=read_password(setting(self._spec, "password_file")) or None,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="perphd",
        )

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
