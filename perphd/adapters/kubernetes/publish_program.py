"""perphd-publish: a process beside perphd on a Kubernetes node that publishes the daemon's state to the cluster."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from perphd import __version__
from perphd.adapters.kubernetes.client import ApiAccess, ApiClient, Forbidden, follow
from perphd.adapters.kubernetes.contributions import Contributions
from perphd.adapters.kubernetes.contributions import withdraw as withdraw_models
from perphd.adapters.kubernetes.documents import troubled
from perphd.adapters.kubernetes.evictor import Evictor
from perphd.adapters.kubernetes.held_slots import HeldSlots
from perphd.adapters.kubernetes.metrics import PublisherMetrics, metrics_app
from perphd.adapters.kubernetes.objects import PODS
from perphd.adapters.kubernetes.options import access_options, chosen_access
from perphd.adapters.kubernetes.own_pods import OwnPods
from perphd.adapters.kubernetes.publisher import Publisher, withdraw
from perphd.adapters.kubernetes.serving import Address, address, listening
from perphd.adapters.node_socket import NodeSocket
from perphd.adapters.rounds import stop_signal, until_stopped
from perphd.agent.contribution_folder import ContributionFolder
from perphd.cluster.contribution_objects import NAMESPACE
from perphd.cluster.eviction import AFTER_S
from perphd.control.client import DEFAULT_SOCKET
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError
from perphd.host.containers import PUBLISHED_PODS

PERIOD_S: Final = 10.0
METRICS_EXAMPLE: Final = "127.0.0.1:9467"
_log: Final = logging.getLogger("perphd.publish")


@dataclass(frozen=True, slots=True)
class SharedModels:
    """Where models are exchanged: see the arguments of ``Contributions``."""

    folder: ContributionFolder
    host: str
    namespace: str


_node_option = click.option(
    "--node",
    envvar="NODE_NAME",
    required=True,
    help="The node's name in the cluster [environment: NODE_NAME].",
)
_namespace_option = click.option(
    "--models-namespace",
    default=NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="Namespace of the exchanged models.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-publish")
def main() -> None:
    """Publish perphd's view of this node to Kubernetes."""


@main.command()
@_node_option
@click.option(
    "--socket", default=DEFAULT_SOCKET, show_default=True, help="Socket of the daemon on this node."
)
@click.option("--period", "period_s", type=click.FloatRange(0.2, 300), default=PERIOD_S, show_default=True,
              help="Seconds between two rounds.")  # fmt: skip
@click.option(
    "--taint",
    type=click.Choice(["NoSchedule", "PreferNoSchedule", "none"]),
    default="PreferNoSchedule",
    show_default=True,
    help="Effect of perphd.io/no-copper. NoSchedule keeps away every pod that does not tolerate it.",
)
@click.option(
    "--pods",
    "pods_file",
    metavar="FILE",
    help=f"Write the labels of this node's pods here; the daemon reads {PUBLISHED_PODS} [default: nowhere].",
)
@click.option(
    "--hold-slots",
    "holds",
    is_flag=True,
    help="Reserve room in the daemon's ledger for pods that extenders have bound; needs the right to make changes.",
)
@click.option(
    "--metrics", metavar="ADDRESS", help="Serve figures for Prometheus on this IP address and port."
)
@click.option(
    "--evict",
    is_flag=True,
    help="Evict copper pods, one at a time, while copper is short of room. Gold and silver are never evicted.",
)
@click.option(
    "--evict-after",
    "evict_after_s",
    type=click.FloatRange(1, 86_400),
    default=AFTER_S,
    show_default=True,
    help="Seconds for which copper must have been short of room.",
)
@click.option(
    "--share-models",
    "models_folder",
    metavar="FOLDER",
    help="Exchange learned models with other nodes as ConfigMaps; FOLDER is the folder of [federated] [default: no].",
)
@click.option(
    "--models-host",
    metavar="NAME",
    help="Name of this host's own file in FOLDER without .json [default: the node's name].",
)
@_namespace_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@access_options
def run(
    node: str,
    socket: str,
    period_s: float,
    taint: str,
    pods_file: str | None,
    holds: bool,
    metrics: str | None,
    evict: bool,
    evict_after_s: float,
    models_folder: str | None,
    models_host: str | None,
    models_namespace: str,
    log_level: str,
    **access: str | None,
) -> None:
    """Publish until SIGTERM or Ctrl-C. Published objects stay; ``withdraw`` removes them."""
    start_logging(log_level)
    try:
        effect = "" if taint == "none" else taint
        at = address(metrics, METRICS_EXAMPLE, "--metrics") if metrics else None
        after_s = evict_after_s if evict else None
        models = (
            SharedModels(ContributionFolder(models_folder), models_host or "", models_namespace)
            if models_folder
            else None
        )
        asyncio.run(
            _run(node, socket, period_s, effect, pods_file, holds, at, after_s, models, chosen_access(access))
        )
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command("withdraw")
@_node_option
@_namespace_option
@access_options
def take_back(node: str, models_namespace: str, **access: str | None) -> None:
    """Remove the resources, conditions, taint, NodeProfile and shared models of a node."""

    async def once() -> None:
        async with ApiClient(chosen_access(access)) as client:
            await withdraw(client, node)
            try:
                await withdraw_models(client, node, models_namespace)
            except Forbidden as exc:
                click.echo(f"shared models of {node}, if any, are not removed: {exc}", err=True)

    try:
        asyncio.run(once())
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


async def _run(
    node: str,
    socket: str,
    period_s: float,
    taint: str,
    pods_file: str | None,
    holds: bool,
    metrics_at: Address | None,
    evict_after_s: float | None,
    models: SharedModels | None,
    access: ApiAccess,
) -> None:
    stop = stop_signal()
    pods = OwnPods()
    daemon, metrics = NodeSocket(socket), PublisherMetrics()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ApiClient(access))
        if metrics_at is not None:
            await listening(stack, metrics_app(metrics.registry), metrics_at, None)
        file = Path(pods_file) if pods_file else None
        slots = HeldSlots(daemon) if holds else None
        evictor = None if evict_after_s is None else Evictor(client, node, pods, evict_after_s)
        publisher = Publisher(
            client, node, daemon.document, pods, period_s, taint, file, slots, metrics, evictor=evictor
        )
        _log.info(
            "perphd-publish %s started: node %s, a round every %g s, process %d",
            __version__,
            node,
            period_s,
            os.getpid(),
        )
        selector = f"spec.nodeName={node}"
        watching = follow(
            client, PODS, pods.replaced, pods.changed, troubled("pods of this node"), fieldSelector=selector
        )
        work = [watching, publisher.run()]
        if models is not None:
            carried = Contributions(client, node, models.folder, models.host, models.namespace)
            metrics.models = lambda: carried.counts
            work.append(carried.run())
        await until_stopped(stop, *work)


if __name__ == "__main__":
    main()
