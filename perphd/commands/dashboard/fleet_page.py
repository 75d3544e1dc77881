"""The fleet page: the data of perphctl cluster, from the scheduler's extender."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

import aiohttp

from perphd.commands.dashboard.shown_parts import shown
from perphd.commands.render_cluster import explained_parts, fleet_parts
from perphd.control.client import Unreachable
from perphd.host.tls import verified

TIMEOUT_S: Final = 10.0
MOST_BYTES: Final = 64 << 20
KEPT_S: Final = 2.0
"""Seconds for which an answer is reused, to limit the extender's load."""


class FleetPage:
    """Queries the extender at ``url``, which is empty if no extender is configured."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._turn = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None

    async def read(self) -> dict[str, Any]:
        """The page's data. Raises Unreachable if the extender does not answer."""
        if not self._url:
            return {"parts": [], "extender": ""}
        async with self._turn:
            now_s = time.monotonic()
            if self._kept is None or now_s - self._kept[0] > KEPT_S:
                data = await self._asked("/fleet")
                made = {"parts": _parts(fleet_parts, data), "extender": self._url}
                self._kept = (now_s, made)
            return self._kept[1]

    async def explain(self, pod: str) -> dict[str, Any]:
        """The nodes that were rejected for a pod with the reasons, and the order of the others.

        Raises Unreachable if no extender is configured, or it does not answer.
        """
        if not self._url:
            raise Unreachable("no extender is named: perphctl dashboard --extender URL")
        return {"parts": _parts(explained_parts, await self._asked("/explain", pod=pod))}

    async def _asked(self, path: str, **query: str) -> Any:
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as http,
                http.get(f"{self._url}{path}", params=query, **await verified(self._url)) as answer,
            ):
                data = json.loads(await _bounded(answer))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            text = str(exc) or type(exc).__name__
            raise Unreachable(f"{self._url}: no perphd-extender answers: {text}") from exc
        if answer.status != 200:
            said = data.get("error", "") if isinstance(data, dict) else ""
            raise Unreachable(f"{self._url}: {said or f'HTTP status {answer.status}'}")
        return data


def _parts(render: Any, data: Any) -> list[dict[str, Any]]:
    try:
        return shown(render(data), "Fleet")
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise Unreachable(
            f"the answer does not come from a perphd-extender of this version: {exc!r}"
        ) from exc


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > MOST_BYTES:
            raise ValueError(f"the answer is larger than {MOST_BYTES >> 20} MiB")
    return bytes(body)
