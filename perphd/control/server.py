"""The control API's server: connections, rights, limits, errors. routes.py has the handlers.

HTTP/JSON, version 1 below /v1, on a Unix socket. Reading is for root, the read group and the admin group;
changing for root and the admin group, as the kernel identifies them (access.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from aiohttp import web

from perphd.config.file import Config
from perphd.control import listen
from perphd.control.access import Access, Peer, Right, peer_of
from perphd.control.errors import ApiError, Code
from perphd.control.gate import ConnectionGate, http_log
from perphd.control.limits import ApiLimits
from perphd.control.port import AgentPort
from perphd.control.read_throttle import ReadSlot, ReadThrottle
from perphd.control.request import arrived
from perphd.control.routes import Hooks, Route, Routes
from perphd.domain.control import Actor
from perphd.domain.errors import ConfigError, PerphError
from perphd.domain.wire import json_of

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_slot: ContextVar[ReadSlot | None] = ContextVar("perphd_read_slot", default=None)
"""The read slot of the request that is being handled."""
_HTTP_CODES = {404: Code.NO_ROUTE, 405: Code.METHOD, 408: Code.TIMEOUT, 413: Code.TOO_LARGE}

ONE_AT_A_TIME: Final = 1
"""Number of connections that asyncio accepts in a row. With a larger number and no free descriptor, asyncio would log
and retry each failed accept separately.
"""


class ControlServer:
    """Serves one agent on one Unix socket.

    Args:
        agent: answers the requests.
        config: names the socket and the groups for the lifetime of this server.
        reload: reads and checks the configuration files again and applies them.
        hooks: what the server needs in addition to the agent; default: this machine and its clocks.
        limits: sizes and times.
        peer_lookup: identifies the peer of a connection; replaced in tests.
        access: the access rule; default: the groups of the agent's configuration.
    """

    def __init__(
        self,
        agent: AgentPort,
        config: Config,
        *,
        reload: Callable[[Actor], Awaitable[Config]],
        hooks: Hooks | None = None,
        limits: ApiLimits | None = None,
        peer_lookup: Callable[[socket.socket], Peer] = peer_of,
        access: Access | None = None,
    ) -> None:
        daemon = config.daemon
        self._path = daemon.socket
        self._limits = limits if limits is not None else ApiLimits()
        self._peer_lookup = peer_lookup
        self._access = access or Access.of_groups(
            daemon.read_group, daemon.admin_group, config.queue.group if config.queue.enabled else ""
        )
        hooks = (
            hooks
            if hooks is not None
            else Hooks.of_host(config.host.root, simulated=config.host.kind == "simulated")
        )
        self._routes = Routes(agent, reload, hooks, self._limits, self._access)
        self._throttle = ReadThrottle(self._limits)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.AbstractServer | None = None
        self._listener: listen.SocketListener | None = None

    async def start(self) -> None:
        """Listen (on systemd's socket if it passed one) and serve.

        Raises:
            SocketTaken: another daemon has the socket.
            PerphError: the socket cannot be created.
        """
        access = self._access
        bound = listen.from_systemd()
        self._listener = bound or listen.bind(self._path, access.read_gid, access.read_group)
        for note in self._listener.notes:
            _log.warning("%s", note)
        try:
            self._runner = web.AppRunner(
                self._application(),
                handle_signals=False,
                access_log=None,
                logger=http_log(),
                keepalive_timeout=self._limits.idle_s,
                shutdown_timeout=self._limits.shutdown_s,
                lingering_time=self._limits.body_s,
            )
            await self._runner.setup()
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                lambda: ConnectionGate(self._runner, self._most),
                sock=self._listener.socket,
                backlog=ONE_AT_A_TIME,
            )
            self._listener.socket.listen(listen.BACKLOG)  # asyncio has set its own backlog
        except BaseException:
            await self.stop()
            raise

    def _most(self, connection: socket.socket | None) -> int:
        """The connection limit for this peer; readers leave a part of it to administrators."""
        if connection is not None:
            with contextlib.suppress(OSError):
                if self._access.allows(self._peer_lookup(connection), Right.CHANGE):
                    return self._limits.connections
        return self._limits.connections - self._limits.reserved

    async def stop(self) -> None:
        """Stop listening, end streams, and let running requests finish briefly. Stopping twice is fine."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._routes.end()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=self._limits.body_bytes, middlewares=[self._outermost])
        for route in self._routes.table():
            app.router.add_route(route.method, route.path, functools.partial(self._answer, route))
        return app

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        peer = self._peer(request)
        self._check(peer, route.right)
        if route.waits and (slot := _slot.get()) is not None:
            slot.end()
        answer = await route.handler(request, peer)
        if isinstance(answer, web.StreamResponse):
            return answer
        return web.Response(status=route.status, text=json_of(answer), content_type="application/json")

    @web.middleware
    async def _outermost(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        slot: ReadSlot | None = None
        try:
            # Learning which paths exist also requires the right to read. A route may require more.
            peer = self._peer(request)
            self._check(peer, Right.READ)
            if not self._access.allows(peer, Right.CHANGE):
                # A reader that sends its body slowly must not keep the others waiting.
                await arrived(request, self._limits.body_s)
                slot = await self._throttle.take()
            _slot.set(slot)
            response = await handler(request)
        except ApiError as exc:
            response = _error(exc)
        except ConfigError as exc:
            response = _error(ApiError(Code.REFUSED, str(exc), exc.key, exc.allowed))
        except PerphError as exc:
            response = _error(ApiError(Code.FAILED, str(exc)))
        except TimeoutError:
            text = f"the request was not complete within {self._limits.body_s:g} s"
            response = _error(ApiError(Code.TIMEOUT, text))
        except web.HTTPException as exc:
            response = _error(_from_http(exc, request, self._limits))
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            text = "an error inside perphd; its log has the details"
            response = _error(ApiError(Code.FAILED, text))
        finally:
            if slot is not None:
                slot.end()
        await self._deliver(request, response)
        return response

    def _peer(self, request: web.Request) -> Peer:
        connection = request.transport.get_extra_info("socket") if request.transport else None
        try:
            if connection is None:
                raise OSError("the connection is closed")
            return self._peer_lookup(connection)
        except OSError as exc:
            text = f"the kernel cannot identify the client: {exc}"
            raise ApiError(Code.NOT_PERMITTED, text) from exc

    def _check(self, peer: Peer, right: Right) -> None:
        if not self._access.allows(peer, right):
            allowed = self._access.needed(right)
            raise ApiError(Code.NOT_PERMITTED, self._access.refusal(peer, right), allowed=allowed)

    async def _deliver(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send the answer and wait until it is received; a client that does not read it in time is disconnected."""
        transport = request.transport
        if transport is None:
            return
        try:
            async with asyncio.timeout(self._limits.write_s):
                await response.prepare(request)
                await response.write_eof()
                # asyncio reports when the buffer falls below a mark, not when it is empty.
                while not transport.is_closing() and transport.get_write_buffer_size():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            pass  # the client has disconnected


def _error(exc: ApiError) -> web.Response:
    return web.Response(status=exc.code.status, text=json_of(exc.body()), content_type="application/json")


def _from_http(exc: web.HTTPException, request: web.Request, limits: ApiLimits) -> ApiError:
    code = _HTTP_CODES.get(exc.status, Code.REFUSED if exc.status < 500 else Code.FAILED)
    match code:
        case Code.NO_ROUTE:
            return ApiError(
                code, f"the path {request.path[:200]!r} does not exist", allowed="paths below /v1"
            )
        case Code.METHOD:
            allowed = (
                ", ".join(sorted(exc.allowed_methods)) if isinstance(exc, web.HTTPMethodNotAllowed) else ""
            )
            return ApiError(
                code, f"{request.path[:200]!r} does not support {request.method}", allowed=allowed
            )
        case Code.TOO_LARGE:
            return ApiError(code, "the body is too large", allowed=f"at most {limits.body_bytes} bytes")
    return ApiError(code, exc.reason)
