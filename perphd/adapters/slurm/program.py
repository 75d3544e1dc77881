"""perphd-slurm: on a Slurm node, reserves the cores that copper may not use, and hands jobs over to the daemon."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import Final

import click

from perphd import __version__
from perphd.adapters.node_socket import NodeSocket
from perphd.adapters.rounds import repeat, stop_signal, until_stopped
from perphd.adapters.slurm.jobs import Declarations, JobWatch, hand_back, hand_over
from perphd.adapters.slurm.publisher import SlurmError, SlurmPublisher, jobs_on
from perphd.control.client import DEFAULT_SOCKET, Client
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError
from perphd.domain.workload import Kind

PERIOD_S: Final = 10.0
JOB_TIMEOUT_S: Final = 5.0
"""Time-out in seconds of requests to the daemon, short because Slurm waits for its prolog."""
_log: Final = logging.getLogger("perphd.slurm")
_node_option = click.option(
    "--node",
    envvar="PERPHD_SLURM_NODE",
    required=True,
    help="The node's name in Slurm [environment: PERPHD_SLURM_NODE].",
)


_socket_option = click.option(
    "--socket", default=DEFAULT_SOCKET, show_default=True, help="Socket of the daemon on this node."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-slurm")
def main() -> None:
    """Reserve, in Slurm, the cores of this node that copper may not use."""


@main.command()
@_node_option
@_socket_option
@click.option("--period", "period_s", type=click.FloatRange(0.2, 300), default=PERIOD_S, show_default=True,
              help="Seconds between two rounds.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def run(node: str, socket: str, period_s: float, log_level: str) -> None:
    """Publish until SIGTERM or Ctrl-C. Reservations stay; ``withdraw`` deletes them."""
    start_logging(log_level)
    try:
        asyncio.run(_run(node, socket, period_s))
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


@main.command()
@_socket_option
@click.option(
    "--batch-partition", "batch", metavar="NAME", multiple=True, help="Partition of batch. Repeatable."
)
@click.option("--lra-partition", "lras", metavar="NAME", multiple=True, help="Partition of LRAs. Repeatable.")
@click.option(
    "--comment", "by_comment", type=click.Choice([*(kind.value for kind in Kind), "none"]), multiple=True,
    default=(Kind.BATCH.value,),
    show_default=True, help="Kind that a job may declare by --comment perphd=KIND. Repeatable.",
)  # fmt: skip
def job_start(
    socket: str, batch: tuple[str, ...], lras: tuple[str, ...], by_comment: tuple[str, ...]
) -> None:
    """Hand the job of this prolog over to the daemon."""
    kinds = frozenset(Kind(each) for each in by_comment if each != "none")
    declarations = Declarations(frozenset(batch), frozenset(lras), kinds)
    try:
        click.echo(hand_over(Client(socket, JOB_TIMEOUT_S), os.environ, declarations))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@_socket_option
def job_end(socket: str) -> None:
    """Take the job of this epilog back from the daemon."""
    try:
        click.echo(hand_back(Client(socket, JOB_TIMEOUT_S), os.environ))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


async def _run(node: str, socket: str, period_s: float) -> None:
    publisher = SlurmPublisher(node, NodeSocket(socket).document, period_s)
    watch = JobWatch(Client(socket, JOB_TIMEOUT_S), partial(jobs_on, node))
    await until_stopped(stop_signal(), publisher.run(), repeat(watch.round, period_s, SlurmError, _log))


if __name__ == "__main__":
    main()
