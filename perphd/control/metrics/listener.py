"""Serves GET /metrics over TCP for Prometheus: on loopback, or with TLS and a bearer token."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from perphd.config.tables import MetricsConfig
from perphd.control.errors import ApiError
from perphd.control.gate import ConnectionGate, http_log
from perphd.control.limits import ApiLimits
from perphd.control.metrics.text import CONTENT_TYPE
from perphd.control.read_throttle import ReadThrottle
from perphd.domain.endpoint import parse_endpoint
from perphd.domain.errors import ConfigError

log = logging.getLogger("perphd")

AGAIN_S: Final = 30.0
"""Seconds before the next attempt to bind an unavailable address."""
MAX_CONNECTIONS: Final = 16
MAX_HANDSHAKES: Final = 16
"""Maximum number of concurrent TLS handshakes; a further one ends the oldest. A genuine client needs milliseconds."""
MIN_TOKEN: Final = 16
"""Minimum length of a token in characters."""


class MetricsListener:
    """Serves the metrics on one TCP address.

    An address that is in use, or not available yet, must not stop the daemon: binding is retried.

    Args:
        config: the operator's settings; ``listen`` is not empty.
        page: renders the present metrics.
        limits: limits of connections and times.
    """

    def __init__(
        self, config: MetricsConfig, page: Callable[[], bytes], limits: ApiLimits | None = None
    ) -> None:
        self._config, self._page = config, page
        self._limits = limits if limits is not None else ApiLimits()
        self._throttle = ReadThrottle(self._limits)
        self._token = read_token(config.bearer_token_file) if config.bearer_token_file else b""
        self._tls = _context(config) if config.tls_cert else None
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._door: TlsDoor | None = None
        self._again: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, now or as soon as the address is available."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/healthy", self._healthy)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=http_log(),
            keepalive_timeout=self._limits.idle_s,
            shutdown_timeout=self._limits.shutdown_s,
        )
        await self._runner.setup()
        if not await self._listen():
            self._again = asyncio.create_task(self._keep_trying())

    async def stop(self) -> None:
        """Stop listening. Stopping twice is fine."""
        if self._again is not None:
            self._again.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._again
            self._again = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._door is not None:
            await self._door.close()
            self._door = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self) -> bool:
        address, port = parse_endpoint(self._config.listen)
        gate = functools.partial(ConnectionGate, self._runner, lambda _: MAX_CONNECTIONS)
        try:
            if self._tls is None:
                self._server = await asyncio.get_running_loop().create_server(gate, address, port)
            else:
                self._door = TlsDoor(gate, _listening(address, port), self._tls, self._limits.idle_s)
        except OSError as exc:
            log.error(
                "metrics.listen: %s cannot be used: %s; retried every %g s", self._config.listen, exc, AGAIN_S
            )
            return False
        log.info("metrics: http%s://%s/metrics", "s" if self._tls else "", self._config.listen)
        return True

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            if await self._listen():
                return

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._token and not _is_bearer(request.headers.get("Authorization", ""), self._token):
            return web.Response(
                status=401, text="a bearer token is needed\n", headers={"WWW-Authenticate": "Bearer"}
            )
        try:
            slot = await self._throttle.take()
        except ApiError as exc:
            return web.Response(status=exc.code.status, text=f"{exc}\n")
        try:
            return web.Response(body=self._page(), headers={"Content-Type": CONTENT_TYPE})
        finally:
            slot.end()

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="perphd answers\n")


class TlsDoor:
    """Accepts connections, with a limited number of concurrent TLS handshakes.

    Args:
        gate: makes the protocol of a connection after its handshake.
        listening: a listening socket; it is closed with this object.
        context: the certificate.
        patience_s: seconds that a handshake may take.
    """

    def __init__(
        self,
        gate: Callable[[], asyncio.Protocol],
        listening: socket.socket,
        context: ssl.SSLContext,
        patience_s: float,
    ) -> None:
        self._gate, self._listening = gate, listening
        self._context, self._patience_s = context, patience_s
        self._shaking: dict[asyncio.Task[None], None] = {}  # in the order of arrival
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting, and end the handshakes in progress."""
        tasks = [self._accepting, *self._shaking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as exc:  # for example, no descriptor is left
                log.error("metrics.listen: a connection cannot be accepted: %s", exc.strerror)
                await asyncio.sleep(1.0)
                continue
            if len(self._shaking) >= MAX_HANDSHAKES:
                next(iter(self._shaking)).cancel()
            task = asyncio.create_task(self._shake(connection))
            self._shaking[task] = None
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)

    async def _shake(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._gate, connection, ssl=self._context, ssl_handshake_timeout=self._patience_s
            )
        except OSError:  # no TLS, another certificate, or a timeout: the client sees the error
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = socket.create_server((address, port), family=family)
    found.setblocking(False)
    return found


def read_token(path: str) -> bytes:
    """The first line of a token file.

    Raises:
        ConfigError: the file cannot be read, other users have access to it, or the token is too short.
    """
    key = "metrics.bearer_token_file"
    try:
        with Path(path).open("rb") as file:
            open_to_all = os.fstat(file.fileno()).st_mode & 0o007
            token = file.readline(4096).strip()
    except OSError as exc:
        raise ConfigError(path, key, f"cannot be read: {exc.strerror}") from exc
    if open_to_all:
        raise ConfigError(path, key, "is accessible to other users; remove their permissions (chmod o=)")
    if len(token) < MIN_TOKEN:
        raise ConfigError(
            path, key, "has no valid token in its first line", f"at least {MIN_TOKEN} characters"
        )
    return token


def _is_bearer(header: str, token: bytes) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), token)


def _context(config: MetricsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(config.tls_cert, "metrics.tls_cert", f"cannot be used with its key: {exc}") from exc
    return context
