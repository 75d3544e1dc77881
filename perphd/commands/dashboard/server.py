"""The dashboard's web server: on loopback, for browsers with a valid link."""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from perphd.commands.dashboard.access import (
    CSRF_HEADER,
    SAFE_HEADERS,
    RequestRefused,
    Session,
    Sessions,
    check_change,
    check_host,
    check_origin,
)
from perphd.commands.dashboard.api import Api
from perphd.commands.dashboard.feed import Feed
from perphd.control.client import NotPermitted, Refused, Unreachable
from perphd.control.gate import http_log
from perphd.domain.errors import PerphError
from perphd.domain.wire import json_of

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = {"/": "index.html", "/sizing": "sizing.html", "/fleet": "fleet.html"}
MAX_STREAMS: Final = 8
HEARTBEAT_S: Final = 15.0
BODY_BYTES: Final = 4096
_SESSION: Final = web.AppKey("session", Session)
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


class Dashboard:
    """Serves the pages, the live stream and the data requests.

    Args:
        api: answers data requests.
        feed: the live stream.
        sessions: links and cookies.
        admin: whether changes are allowed.
    """

    def __init__(self, api: Api, feed: Feed, sessions: Sessions, admin: bool) -> None:
        self._api, self._feed, self._sessions, self._admin = api, feed, sessions, admin
        self._runner: web.AppRunner | None = None
        self._ended = asyncio.Event()
        self._streams = 0
        self._cookie = "perphd_dashboard"

    async def start(self, address: str, port: int) -> int:
        """Listen; returns the port, which the kernel chooses if ``port`` is 0. Raises OSError if it is unavailable."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._outermost])
        for path in PAGES:
            app.router.add_get(path, self._page)
        app.router.add_get("/static/{path:[A-Za-z0-9_./-]+}", self._static)
        app.router.add_get("/api/session", self._session)
        app.router.add_get("/api/stream", self._stream)
        for path, reader in self._api.readers().items():
            app.router.add_get(f"/api/{path}", self._reading(reader))
        for path, changer in self._api.changers().items():
            app.router.add_post(f"/api/{path}", self._changing(changer))
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=http_log(),
            shutdown_timeout=1.0,
            handler_cancellation=True,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()
        found = int(self._runner.addresses[0][1])
        # Browsers share cookies across ports: two dashboards on one machine need two names.
        self._cookie = f"perphd_dashboard_{found}"
        return found

    async def stop(self) -> None:
        """End all streams and stop listening. Stopping twice is fine."""
        self._ended.set()
        await self._feed.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _outermost(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            check_host(request.headers.get("Host", ""))
            response = await handler(request)
        except web.HTTPException as exc:
            response = self._refuse(request, exc.status, _HTTP_TEXTS.get(exc.status, exc.reason))
        except (Unreachable, NotPermitted, Refused, PerphError) as exc:
            response = self._refuse(request, _status_of(exc), str(exc))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            response = self._refuse(request, 500, "The dashboard failed; its log has the reason.")
        if not response.prepared:
            response.headers.update(SAFE_HEADERS)
        return response

    def _refuse(self, request: web.Request, status: int, text: str) -> web.Response:
        if request.path.startswith("/api/"):
            return web.Response(status=status, text=json_of({"error": text}), content_type="application/json")
        return web.Response(status=status, text=_refusal_page(status, text), content_type="text/html")

    def _known(self, request: web.Request) -> Session:
        check_origin(request.headers)
        return self._sessions.find(request.cookies.get(self._cookie))

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if "token" in request.query:
            name = self._sessions.exchange(request.query["token"])
            response: web.Response = web.Response(status=303, headers={"Location": request.path})
            response.set_cookie(self._cookie, name, httponly=True, samesite="Strict", path="/")
            return response
        self._sessions.find(request.cookies.get(self._cookie))
        return _file(STATIC / PAGES[request.path])

    async def _static(self, request: web.Request) -> web.StreamResponse:
        path = (STATIC / request.match_info["path"]).resolve()
        if not path.is_relative_to(STATIC) or path.suffix not in _TYPES or not path.is_file():
            raise web.HTTPNotFound
        return _file(path)

    async def _session(self, request: web.Request) -> web.Response:
        session = self._known(request)
        return _json({"csrf": session.csrf, "csrf_header": CSRF_HEADER, "admin": self._admin})

    def _reading(self, reader: Callable[[Any], Awaitable[Any]]) -> _Handler:
        async def answer(request: web.Request) -> web.Response:
            self._known(request)
            return _json(await reader(request.query))

        return answer

    def _changing(self, changer: Callable[[Any], Awaitable[Any]]) -> _Handler:
        async def answer(request: web.Request) -> web.Response:
            check_change(request.headers, self._known(request), self._admin)
            if request.content_type != "application/json":
                raise RequestRefused(415, "Send changes as JSON.")
            try:
                body = await request.json()
            except ValueError:
                body = None
            if not isinstance(body, dict):
                raise RequestRefused(400, "Send changes as a JSON object.")
            return _json(await changer(body))

        return answer

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self._known(request)
        if self._streams >= MAX_STREAMS:
            raise RequestRefused(
                503, f"{MAX_STREAMS} pages are open already. Close one and load this one again."
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **SAFE_HEADERS})
        self._streams += 1
        ended = asyncio.create_task(self._ended.wait())
        messages = self._feed.messages()
        following = asyncio.ensure_future(anext(messages))
        try:
            await response.prepare(request)
            await response.write(b"retry: 2000\n\n")
            while not self._ended.is_set():
                await asyncio.wait(
                    {following, ended}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if following.done():
                    message = following.result()
                    following = asyncio.ensure_future(anext(messages))
                    await response.write(f"event: {message.name}\ndata: {message.data}\n\n".encode())
                else:
                    await response.write(b": alive\n\n")
        except ConnectionError:
            pass
        finally:
            self._streams -= 1
            for task in (following, ended):
                task.cancel()
            await asyncio.gather(following, ended, return_exceptions=True)
            with suppress(RuntimeError):
                await messages.aclose()  # type: ignore[attr-defined]
        return response


_HTTP_TEXTS: Final = {
    404: "There is no such page.",
    405: "This address does not accept this method.",
    413: "The request is too large.",
}


def _status_of(error: PerphError) -> int:
    match error:
        case RequestRefused():
            return error.status
        case Unreachable():
            return 502
        case NotPermitted():
            return 403
        case Refused():
            return error.status
        case _:
            return 400


def _json(data: Any) -> web.Response:
    return web.Response(text=json_of(data), content_type="application/json")


def _file(path: Path) -> web.Response:
    return web.Response(body=path.read_bytes(), content_type=_TYPES[path.suffix], charset="utf-8")


def _refusal_page(status: int, text: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>perphd dashboard</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/static/app.css"></head><body class="refusal"><main>'
        f'<h1>perphd dashboard</h1><p>{html.escape(text)}</p><p class="dim">HTTP status {status}</p>'
        "</main></body></html>\n"
    )
