"""perphd-yarn: runs beside perphd on a YARN node, and sets the capacity of its NodeManager.

The capacity is the amount that LRAs need and the amount that perphd offers to copper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from perphd import __version__
from perphd.adapters.node_socket import NodeSocket
from perphd.adapters.rounds import stop_signal, until_stopped
from perphd.adapters.yarn.capacity import YarnCapacity
from perphd.adapters.yarn.client import YarnClient, checked_url
from perphd.adapters.yarn.containers import label_match
from perphd.adapters.yarn.publisher import YarnPublisher, YarnSettings
from perphd.control.client import DEFAULT_SOCKET
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError
from perphd.host.yarn import HIERARCHY, PUBLISHED_CONTAINERS

PERIOD_S: Final = 10.0
_log: Final = logging.getLogger("perphd.yarn")


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--vcores", type=click.IntRange(0), help="Configured vcores [default: the NodeManager's]."),
        click.option("--memory-mb", type=click.IntRange(0), help="Configured MiB [default: the NodeManager's]."),
        click.option(
            "--ca-file", metavar="FILE", default="",
            help="Certificate authority for https [default: the system's].",
        ),
        click.option("--user", default="", help="Sent as user.name, with simple authentication [default: none]."),
        click.option(
            "--node-manager", metavar="URL", default="",
            help="The NodeManager's web interface [default: as reported by the ResourceManager].",
        ),
        click.option(
            "--resource-manager", "addresses", metavar="URL", multiple=True, required=True,
            envvar="PERPHD_YARN_RESOURCE_MANAGER",
            help="Web interface of the ResourceManager; once for each [environment: PERPHD_YARN_RESOURCE_MANAGER].",
        ),
        click.option(
            "--node", required=True, envvar="PERPHD_YARN_NODE",
            help="The node in YARN: HOST:PORT, or HOST if it has one NodeManager [environment: PERPHD_YARN_NODE].",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-yarn")
def main() -> None:
    """Set this node's NodeManager capacity from perphd's offer to copper."""


@main.command()
@_common
@click.option("--lra", "lras", metavar="LABEL=GLOB", multiple=True,
              help="Applications that are LRAs, such as yarn.queue=services. Repeatable.")  # fmt: skip
@click.option("--lra-memory-mb", type=click.IntRange(0), default=0, show_default=True,
              help="Memory kept for LRAs even if they hold less, MiB.")  # fmt: skip
@click.option(
    "--lra-vcores", type=click.IntRange(0), default=0, show_default=True, help="Minimum vcores kept for LRAs."
)
@click.option("--vcores-per-cpu", type=click.FloatRange(0.1, 100), default=1.0, show_default=True,
              help="Vcores that YARN counts for a CPU.")  # fmt: skip
@click.option("--overcommit-timeout", "overcommit_s", type=click.FloatRange(-1, 86400), default=-1.0,
              show_default=True,
              help="Seconds after which YARN kills containers beyond a lowered capacity, LRAs included; -1: never."
              )  # fmt: skip
@click.option("--containers", "containers_file", metavar="FILE",
              help=f"Write the containers' labels here; the daemon reads {PUBLISHED_CONTAINERS} [default: nowhere]."
              )  # fmt: skip
@click.option("--hierarchy", default=HIERARCHY, show_default=True,
              help="Control group of the containers (LinuxContainerExecutor).")  # fmt: skip
@click.option(
    "--socket", default=DEFAULT_SOCKET, show_default=True, help="Socket of the daemon on this node."
)
@click.option("--period", "period_s", type=click.FloatRange(0.2, 300), default=PERIOD_S, show_default=True,
              help="Seconds between two rounds.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def run(
    lras: tuple[str, ...],
    lra_memory_mb: int,
    lra_vcores: int,
    vcores_per_cpu: float,
    overcommit_s: float,
    containers_file: str | None,
    hierarchy: str,
    socket: str,
    period_s: float,
    log_level: str,
    **common: Any,
) -> None:
    """Publish until SIGTERM or Ctrl-C. The capacity stays; ``withdraw`` restores the configured capacity."""
    start_logging(log_level)
    try:
        settings = YarnSettings(
            common["node"], _configured(common), _node_manager(common), tuple(label_match(each) for each in lras),
            YarnCapacity(lra_memory_mb, lra_vcores), vcores_per_cpu, overcommit_s,
            Path(containers_file) if containers_file else None, hierarchy,
        )  # fmt: skip
        asyncio.run(_run(_client(common), settings, socket, period_s))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command("withdraw")
@_common
def take_back(**common: Any) -> None:
    """Restore the configured capacity of a node."""

    async def once() -> YarnCapacity:
        settings = YarnSettings(common["node"], _configured(common), _node_manager(common))
        async with _client(common) as client:
            return await YarnPublisher(
                client, settings, NodeSocket(DEFAULT_SOCKET).document, PERIOD_S
            ).withdraw()

    try:
        click.echo(f"{common['node']}: {asyncio.run(once())}")
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


async def _run(client: YarnClient, settings: YarnSettings, socket: str, period_s: float) -> None:
    stop = stop_signal()
    async with client:
        publisher = YarnPublisher(client, settings, NodeSocket(socket).document, period_s)
        _log.info("perphd-yarn %s started: node %s, a round every %g s", __version__, settings.node, period_s)
        await until_stopped(stop, publisher.run())


def _client(common: dict[str, Any]) -> YarnClient:
    return YarnClient(common["addresses"], common["user"], common["ca_file"])


def _node_manager(common: dict[str, Any]) -> str:
    return checked_url(common["node_manager"]) if common["node_manager"] else ""


def _configured(common: dict[str, Any]) -> YarnCapacity | None:
    given = common["memory_mb"], common["vcores"]
    if given == (None, None):
        return None
    if None in given:
        raise PerphError("--memory-mb and --vcores must be given together")
    return YarnCapacity(*given)


if __name__ == "__main__":
    main()
