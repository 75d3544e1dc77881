"""All servers of one agent, started and stopped together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

from perphd.config.file import Config
from perphd.control.access import Access
from perphd.control.kept_file import NamesFile, Textfile
from perphd.control.metrics import Collector
from perphd.control.metrics.listener import MetricsListener
from perphd.control.port import AgentPort
from perphd.control.server import ControlServer
from perphd.domain.control import Actor


class RunningServer(Protocol):
    """One server."""

    async def start(self) -> None:
        """Start to serve."""

    async def stop(self) -> None:
        """Stop serving."""


class Servers:
    """Starts its servers in order and stops them in reverse order."""

    def __init__(self, servers: Sequence[RunningServer]) -> None:
        self._servers = tuple(servers)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start all. If one fails, the earlier ones are stopped and its error is raised."""
        try:
            for server in self._servers:
                await server.start()
                self._stack.push_async_callback(server.stop)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all that were started. Stopping twice is fine."""
        await self._stack.pop_all().aclose()


def servers_of(agent: AgentPort, config: Config, reload: Callable[[Actor], Awaitable[Config]]) -> Servers:
    """The control socket, and the servers configured in ``[metrics]`` and ``[[notify]]``.

    Raises:
        ConfigError: the token or the certificate of the metrics' listener cannot be used.
    """
    metrics = config.metrics
    page = Collector(
        agent.status,
        lambda: agent.tally,
        lambda: agent.topology,
        agent.forecasts,
        agent.shaper,
        agent.memory_fits,
    ).text
    servers: list[RunningServer] = [ControlServer(agent, config, reload=reload)]
    access = Access.of_groups(config.daemon.read_group, config.daemon.admin_group)
    servers.append(NamesFile(config.daemon.socket, access.read_gid, agent.status))
    if metrics.listen:
        servers.append(MetricsListener(metrics, page))
    if metrics.textfile:
        servers.append(Textfile(metrics.textfile, metrics.textfile_period_s, page))
    if config.notify:
        from perphd.control.hooks import NoticeHooks  # loads aiohttp's client

        servers.append(NoticeHooks(config.notify, agent.status, lambda: agent.tally))
    return Servers(servers)
