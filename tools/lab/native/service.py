"""An HTTP service with some work for every page, and metrics for Prometheus: service.py PORT."""

from __future__ import annotations

import hashlib
import sys

from aiohttp import web
from prometheus_client import Histogram, generate_latest

PAGES = Histogram(
    "pages_seconds", "Time to make a page.", buckets=[0.0005 * 1.5**step for step in range(20)]
)
_ROUNDS = 1500


async def page(request: web.Request) -> web.Response:
    """A page that takes about a millisecond of CPU time."""
    with PAGES.time():
        digest = request.match_info["number"].encode()
        for _ in range(_ROUNDS):
            digest = hashlib.sha256(digest).digest()
        return web.Response(text=f"<html><body>{digest.hex() * 8}</body></html>", content_type="text/html")


async def metrics(request: web.Request) -> web.Response:
    """The metrics for Prometheus."""
    return web.Response(body=generate_latest(), content_type="text/plain")


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.get("/page/{number}", page), web.get("/metrics", metrics)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
