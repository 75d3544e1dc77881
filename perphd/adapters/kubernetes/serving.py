"""Opens the listening sockets of the servers that the control plane calls, with TLS beyond loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from perphd.domain.errors import PerphError

RENEWAL_S: Final = 30.0
"""Seconds between two checks of the certificate's files, which a cluster renews in place."""
_SHUTDOWN_S: Final = 5.0
_log: Final = logging.getLogger("perphd.extender")


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{shown}:{self.port}"


def address(text: str, example: str, option: str = "--listen") -> Address:
    """The address given by this option.

    Raises:
        PerphError: it is not an IP address with a port; the message shows ``example``.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(port)
    except ValueError as exc:
        raise PerphError(f"{option} {text}: must be an IP address and a port, such as {example}") from exc
    return Address(host, number)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files with a certificate, its key and, if clients must have certificates too, the authority that signs these."""

    cert: str
    key: str
    client_ca: str | None = None

    @classmethod
    def chosen(
        cls, at: Address, cert: str | None, key: str | None, client_ca: str | None
    ) -> Certificate | None:
        """The certificate given by the options; None: plain HTTP on loopback.

        Raises:
            PerphError: the options contradict each other or the address.
        """
        if not cert and not key and not client_ca:
            if at.is_loopback:
                return None
            raise PerphError("--tls-cert and --tls-key are required beyond loopback")
        if not cert or not key:
            raise PerphError("--tls-cert and --tls-key must be given together; --client-ca needs both")
        return cls(cert, key, client_ca)

    def context(self) -> ssl.SSLContext:
        """The TLS context of a server.

        Raises:
            PerphError: a file is unreadable, or the key belongs to another certificate.
        """
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as exc:
            raise PerphError(f"TLS: {self.cert}, {self.key}: {exc}") from exc
        if self.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    async def renewed(self, context: ssl.SSLContext, period_s: float) -> None:
        """Load the certificate again whenever its files change, forever. New connections use the new one.

        Files that do not match, such as a new certificate before its key, are tried again.
        """
        before = refused = self._state()
        while True:
            await asyncio.sleep(period_s)
            now = self._state()
            if now == before:
                continue
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as exc:
                if now != refused:
                    _log.warning(
                        "the renewed certificate %s cannot be loaded: %s; the previous one stays in use",
                        self.cert,
                        exc,
                    )
                refused = now
                continue
            before = refused = now
            _log.info("the renewed certificate %s is in use", self.cert)

    def _state(self) -> tuple[tuple[int, int], ...]:
        found = []
        for name in (self.cert, self.key):
            try:
                state = Path(name).stat()
                found.append((state.st_mtime_ns, state.st_ino))
            except OSError:
                found.append((0, 0))
        return tuple(found)


async def listening(
    stack: AsyncExitStack,
    app: web.Application,
    at: Address,
    certificate: Certificate | None,
    renewal_s: float = RENEWAL_S,
) -> list[Coroutine[Any, Any, None]]:
    """Serve until the stack closes; returns the work that must run meanwhile: renewing the certificate.

    Raises:
        PerphError: the certificate is unusable, or the address is taken.
    """
    context = certificate.context() if certificate is not None else None
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, at.host, at.port, ssl_context=context).start()
    except OSError as exc:
        raise PerphError(f"{at}: cannot listen: {exc.strerror}") from exc
    if certificate is None or context is None:
        return []
    return [certificate.renewed(context, renewal_s)]
