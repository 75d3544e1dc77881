"""perphd-slurm: a process beside perphd on a Slurm node that reserves the cores that copper may not use."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import click

from perphd import __version__
from perphd.adapters.node_socket import NodeSocket
from perphd.adapters.rounds import stop_signal, until_stopped
from perphd.adapters.slurm.publisher import SlurmPublisher
from perphd.control.client import DEFAULT_SOCKET
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError

PERIOD_S: Final = 10.0
_log: Final = logging.getLogger("perphd.slurm")
_node_option = click.option("--node", required=True, help="The node's name in Slurm.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-slurm")
def main() -> None:
    """Hold cores of this node that copper may not have, by Slurm's reservations."""


@main.command()
@_node_option
@click.option("--socket", default=DEFAULT_SOCKET, show_default=True, help="Of the daemon on this node.")
@click.option("--period", "period_s", type=click.FloatRange(0.2, 300), default=PERIOD_S, show_default=True,
              help="Seconds between two looks.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def run(node: str, socket: str, period_s: float, log_level: str) -> None:
    """Publish until SIGTERM or Ctrl-C. Reservations stay; ``withdraw`` deletes them."""
    start_logging(log_level)
    try:
        asyncio.run(_run(SlurmPublisher(node, NodeSocket(socket).document, period_s)))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command("withdraw")
@_node_option
def take_back(node: str) -> None:
    """Delete perphd's reservations of a node."""
    try:
        asyncio.run(SlurmPublisher(node, NodeSocket(DEFAULT_SOCKET).document, PERIOD_S).withdraw())
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


async def _run(publisher: SlurmPublisher) -> None:
    await until_stopped(stop_signal(), publisher.run())


if __name__ == "__main__":
    main()
