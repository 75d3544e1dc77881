"""perphd-extender: a process beside kube-scheduler that answers its extender calls from the nodes' documents.

Without --bind it writes nothing to the cluster. ``webhook`` runs a separate server, which the API server calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click

from perphd import __version__
from perphd.adapters.kubernetes.binding import Binder
from perphd.adapters.kubernetes.client import ApiAccess, ApiClient, follow
from perphd.adapters.kubernetes.documents import (
    DocumentCache,
    follow_address,
    follow_folder,
    follow_profiles,
    troubled,
)
from perphd.adapters.kubernetes.extender import ExtenderServer
from perphd.adapters.kubernetes.objects import PODS
from perphd.adapters.kubernetes.options import access_options, chosen_access
from perphd.adapters.kubernetes.recording import Recorder, replayed
from perphd.adapters.kubernetes.serving import Address, Certificate, address, listening
from perphd.adapters.kubernetes.webhook import WebhookServer
from perphd.adapters.rounds import stop_signal, until_stopped
from perphd.cluster.asking import BAND_LABEL
from perphd.cluster.document import NodeDocument
from perphd.cluster.scheduling.placement import POLICIES
from perphd.cluster.slots import Slot
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError
from perphd.qos.bands import QosBand

DEFAULT_LISTEN: Final = "127.0.0.1:9466"
DEFAULT_WEBHOOK: Final = "127.0.0.1:9468"
_log: Final = logging.getLogger("perphd.extender")


class _Recording:
    """Passes every change of the cache to the recorder."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def put(self, node: str, document: NodeDocument) -> None:
        if self.recorder is not None:
            self.recorder.put(time.time(), node, document)

    def hold(self, node: str, slots: tuple[Slot, ...]) -> None:
        if self.recorder is not None:
            self.recorder.hold(time.time(), node, slots)

    def forget(self, node: str) -> None:
        if self.recorder is not None:
            self.recorder.forget(time.time(), node)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-extender")
def main() -> None:
    """Answer kube-scheduler's extender calls from the documents that perphd's nodes publish."""


@main.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, help="Address and port.")
@click.option("--tls-cert", metavar="FILE", help="Certificate; required beyond loopback.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option("--client-ca", metavar="FILE", help="Serve only clients with a certificate of this authority.")
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default="optum", show_default=True)
@click.option(
    "--documents",
    metavar="FOLDER|URL",
    help="Documents from NODE.json files or from an address instead of NodeProfile objects.",
)
@click.option("--period", "period_s", type=click.FloatRange(0.1, 600), default=5.0, show_default=True,
              help="Seconds between two reads of --documents.")  # fmt: skip
@click.option(
    "--bind", "binds", is_flag=True, help="Reserve and bind copper pods; only with ignorable: false."
)
@click.option("--record", metavar="FILE", help="Append inputs and answers to this file, for replay.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@access_options
def run(
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
    policy: str,
    documents: str | None,
    period_s: float,
    binds: bool,
    record: str | None,
    log_level: str,
    **access: str | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    start_logging(log_level)
    try:
        at = address(listen, DEFAULT_LISTEN)
        certificate = Certificate.chosen(at, tls_cert, tls_key, client_ca)
        if binds and documents:
            raise PerphError("--bind needs NodeProfile objects: remove --documents")
        if binds and certificate is not None and not client_ca:
            raise PerphError("--bind beyond loopback needs --client-ca, because callers can place pods")
        api = None if documents else chosen_access(access)
        asyncio.run(_serve(at, certificate, policy, documents, period_s, binds, record, api))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@click.option("--listen", default=DEFAULT_WEBHOOK, show_default=True, help="Address and port.")
@click.option("--tls-cert", metavar="FILE", required=True, help="Certificate; the API server requires TLS.")
@click.option("--tls-key", metavar="FILE", required=True, help="Private key of the certificate.")
@click.option("--client-ca", metavar="FILE", help="Serve only clients with a certificate of this authority.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
def webhook(listen: str, tls_cert: str, tls_key: str, client_ca: str | None, log_level: str) -> None:
    """Turn requests of new copper pods into copper's extended resources, until SIGTERM or Ctrl-C."""
    start_logging(log_level)

    async def serve(at: Address, certificate: Certificate) -> None:
        stop = stop_signal()
        async with AsyncExitStack() as stack:
            renewing = await listening(stack, WebhookServer().app(), at, certificate)
            _log.info("perphd-extender %s: the webhook serves on %s", __version__, at)
            await until_stopped(stop, *renewing)

    try:
        asyncio.run(serve(address(listen, DEFAULT_WEBHOOK), Certificate(tls_cert, tls_key, client_ca)))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--pod", help="Show only this pod, with the scores of its best candidates.")
def replay(file: str, pod: str | None) -> None:
    """Answer every recorded call again; exit with 1 if an answer differs."""
    total = different = 0
    try:
        with Path(file).open(encoding="utf-8") as lines:
            for each in replayed(lines):
                total += 1
                different += not each.is_same
                if pod is None and each.is_same:
                    continue
                if pod in (None, each.pod):
                    click.echo(
                        f"{each.at_unix_s:.3f} {each.verb} {each.pod}: {'same' if each.is_same else 'DIFFERENT'}"
                    )
                    if pod is not None:
                        for score in each.verdict.scores.ranked(5):
                            click.echo(f"    {score}")
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc
    click.echo(f"{total} calls, {different} with a different answer")
    raise SystemExit(1 if different else 0)


async def _serve(
    at: Address,
    certificate: Certificate | None,
    policy: str,
    documents: str | None,
    period_s: float,
    binds: bool,
    record: str | None,
    api: ApiAccess | None,
) -> None:
    recording = _Recording()
    cache = DocumentCache(recording)
    copper: set[str] = set()
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        if record:
            recording.recorder = Recorder(Path(record), cache.known)
            stack.callback(recording.recorder.close)
            if recording.recorder.problem:
                raise PerphError(recording.recorder.problem)
        binder = None
        if api is not None:
            client = await stack.enter_async_context(ApiClient(api))
            followers = [follow_profiles(client, cache), _follow_copper(client, copper)]
            binder = Binder(client, cache.is_fresh) if binds else None
        elif documents is not None and documents.startswith(("http://", "https://")):
            followers = [follow_address(documents, cache, period_s)]
        else:
            assert documents is not None
            followers = [follow_folder(Path(documents), cache, period_s)]
        server = ExtenderServer(cache, policy, binder, copper.__contains__, recording.recorder)
        try:
            renewing = await listening(stack, server.app(), at, certificate)
        except PerphError:
            for follower in followers:
                follower.close()
            raise
        bound = ", binding copper" if binds else ""
        _log.info("perphd-extender %s serves on %s, policy %s%s", __version__, at, policy, bound)
        await until_stopped(stop, *followers, *renewing)


async def _follow_copper(client: ApiClient, copper: set[str]) -> None:
    """Track the UIDs of pods labelled copper, the only ones that may be preempted."""

    def replaced(pods: list[Any]) -> None:
        copper.clear()
        copper.update(pod["metadata"]["uid"] for pod in pods)

    def changed(kind: str, pod: Any) -> None:
        (copper.discard if kind == "DELETED" else copper.add)(pod["metadata"]["uid"])

    selector = f"{BAND_LABEL}={QosBand.COPPER.value}"
    await follow(client, PODS, replaced, changed, troubled("copper pods"), labelSelector=selector)


if __name__ == "__main__":
    main()
