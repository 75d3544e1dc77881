"""perphd-extender: a process beside kube-scheduler that answers its extender calls from the nodes' documents.

Without --bind it writes nothing to the cluster.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web

from perphd import __version__
from perphd.adapters.kubernetes.binding import Binder
from perphd.adapters.kubernetes.client import Access, ApiClient, follow
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
from perphd.adapters.rounds import stop_signal, until_stopped
from perphd.cluster.asking import BAND_LABEL
from perphd.cluster.document import NodeDocument
from perphd.cluster.scheduling.placement import POLICIES
from perphd.control.journal_log import start_logging
from perphd.domain.errors import PerphError
from perphd.qos.bands import QosBand

DEFAULT_LISTEN: Final = "127.0.0.1:9466"
_SHUTDOWN_S: Final = 5.0
_log: Final = logging.getLogger("perphd.extender")


class _Recording:
    """Passes every change of the cache to the recorder."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def put(self, node: str, document: NodeDocument) -> None:
        if self.recorder is not None:
            self.recorder.put(time.time(), node, document)

    def forget(self, node: str) -> None:
        if self.recorder is not None:
            self.recorder.forget(time.time(), node)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perphd-extender")
def main() -> None:
    """Answer kube-scheduler's extender calls from what perphd's nodes publish."""


@main.command()
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, help="Address and port.")
@click.option("--tls-cert", metavar="FILE", help="Certificate; required beyond loopback.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--client-ca", metavar="FILE", help="Serve only clients with a certificate of this authority.")
@click.option("--policy", type=click.Choice(sorted(POLICIES)), default="optum", show_default=True)
@click.option(
    "--documents",
    metavar="FOLDER|URL",
    help="Documents from NODE.json files or from an address instead of NodeProfile objects.",
)
@click.option("--period", "period_s", type=click.FloatRange(0.1, 600), default=5.0, show_default=True,
              help="Seconds between two looks at --documents.")  # fmt: skip
@click.option(
    "--bind", "binds", is_flag=True, help="Reserve and bind copper pods; only with ignorable: false."
)
@click.option("--record", metavar="FILE", help="Write what was known and answered, to replay it.")
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
        host, port = _address(listen)
        context = _tls(host, tls_cert, tls_key, client_ca)
        if binds and documents:
            raise PerphError("--bind needs NodeProfile objects: remove --documents")
        if binds and context is not None and not client_ca:
            raise PerphError("--bind beyond loopback needs --client-ca, because callers can place pods")
        api = None if documents else chosen_access(access)
        asyncio.run(_serve(host, port, context, policy, documents, period_s, binds, record, api))
    except PerphError as exc:
        raise click.ClickException(str(exc)) from exc


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--pod", help="Only this pod, with the scores of its best candidates.")
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


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(port)
    except ValueError as exc:
        raise PerphError(
            f"--listen {text}: must be an IP address and a port, such as {DEFAULT_LISTEN}"
        ) from exc
    return host, number


def _tls(host: str, cert: str | None, key: str | None, client_ca: str | None) -> ssl.SSLContext | None:
    if not cert and not key and not client_ca:
        if ipaddress.ip_address(host).is_loopback:
            return None
        raise PerphError("beyond loopback --tls-cert and --tls-key are required")
    if not cert or not key:
        raise PerphError("--tls-cert and --tls-key must be given together")
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as exc:
        raise PerphError(f"TLS: {exc}") from exc
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _serve(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    policy: str,
    documents: str | None,
    period_s: float,
    binds: bool,
    record: str | None,
    api: Access | None,
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
        runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as exc:
            for follower in followers:
                follower.close()
            raise PerphError(f"{host}:{port}: cannot listen: {exc.strerror}") from exc
        bound = ", binding copper" if binds else ""
        _log.info("perphd-extender %s serves on %s:%s, policy %s%s", __version__, host, port, policy, bound)
        await until_stopped(stop, *followers)


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
