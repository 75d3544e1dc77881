"""Indicators of Redis and its forks: commands per second from INFO, and latency from LATENCY HISTOGRAM.

INFO stats has one total of all commands, with those of monitors and of perphd itself, whose number is unknown after a
lost connection. INFO commandstats has a total for each command, so these are left out exactly.
The histogram contains execution times, without the time that commands waited in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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

NO_WORK: Final = frozenset(
    "acl auth bgrewriteaof bgsave client cluster command config debug hello info lastsave latency memory module "
    "monitor psync replconf replicaof role save slaveof slowlog sync".split()
)
"""Commands of operators, monitors and replicas, and of establishing a connection. They are not the server's work."""
NO_REQUESTS: Final = (*sorted(NO_WORK), *"blmove blmpop blpop brpop bzmpop bzpop wait xread".split())
"""``NO_WORK`` and blocking commands. Their execution times are not request latencies."""


class RedisSource(PolledSource):
    """Commands processed per second without ``NO_WORK``, exact at any moment."""

    def __init__(self, spec: SliSpec) -> None:
        super().__init__("redis", seconds(spec, "timeout_s"), resolution_of(spec, EXACT))
        self._spec = spec
        self._client: Any = None
        self._window = CountWindow()
        self._latency = ServerLatency() if setting(spec, "latency") == "server" else None

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        if self._client is None:
            self._client = self._connect()
            await self._name_connection()
        stats = await self._client.info("commandstats")
        at_s = answered_at()
        counted = self._window.update(_work(stats), at_s, self.resolution)
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
        )

    async def _name_connection(self) -> None:
        """Name the connection for CLIENT LIST, if the account may: it needs only INFO."""
        from redis.exceptions import ResponseError

        with suppress(ResponseError):
            await self._client.client_setname("perphd")

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _work(stats: Mapping[str, Any]) -> int:
    """Commands processed so far without ``NO_WORK``, from INFO commandstats.

    Raises:
        SliError: no command is listed. From the second question on, a server that lists commands lists INFO.
    """
    if not stats:
        raise SliError("INFO commandstats lists no commands")
    done = 0
    for name, values in stats.items():
        if name.removeprefix("cmdstat_").partition("|")[0].lower() not in NO_WORK:
            done += int(values["calls"])
    return done
