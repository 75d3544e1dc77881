"""A gate between a listening socket and aiohttp: a connection limit, and a filtered log."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from perphd.control.errors import ApiError, Code
from perphd.domain.wire import json_of

_LINGER_S = 1.0


def http_log() -> logging.Logger:
    """A logger for aiohttp without messages about invalid HTTP, with which any client could fill the journal."""
    log = logging.getLogger(f"{__name__}.http")
    if not log.filters:
        log.addFilter(_is_news)
    return log


def _is_news(record: logging.LogRecord) -> bool:
    raised = record.exc_info[1] if record.exc_info else None
    return not isinstance(raised, HttpProcessingError)


class ConnectionGate(asyncio.Protocol):
    """Passes a new connection to aiohttp; above the limit, sends one error and closes it."""

    def __init__(self, runner: web.AppRunner | None, most: Callable[[socket.socket | None], int]) -> None:
        self._server = runner.server if runner is not None else None
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on, or refuse it above the limit.

        The limit is checked only here, because several connections may have been accepted at once.
        """
        assert isinstance(transport, asyncio.Transport)
        limit = self._most(transport.get_extra_info("socket"))
        if self._server is not None and len(self._server.connections) < limit:
            handler = self._server()
            transport.set_protocol(handler)
            handler.connection_made(transport)
            return
        error = ApiError(Code.BUSY, f"{limit} connections are open already; try again")
        body = json_of(error.body()).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        transport.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        # Closing with an unread request would reset the connection and lose the answer.
        if transport.can_write_eof():  # not possible with TLS
            transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.close)
