"""An adapter's access to the daemon of this node."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import aiohttp

from perphd.cluster.document import NodeDocument
from perphd.domain.errors import PerphError
from perphd.domain.reading import Unavailable
from perphd.domain.wire import decode
from perphd.qos.ledger import Amounts


class SocketError(PerphError):
    """A request that the daemon did not fulfil."""


class NodeSocket:
    """The daemon's API on its Unix socket."""

    def __init__(self, path: str, timeout_s: float = 5.0) -> None:
        self.path, self._timeout_s = path, timeout_s

    async def document(self) -> NodeDocument | Unavailable:
        """The node's document from ``GET /v1/node``, or why there is none."""
        try:
            return decode(NodeDocument, await self._asked("GET", "/v1/node"))
        except PerphError as exc:
            return Unavailable(str(exc))

    async def generation(self) -> int:
        """The generation that the next reservation must name. Raises SocketError."""
        return int((await self._asked("GET", "/v1/node"))["generation"])

    async def reserve(self, holder: str, wanted: Amounts, generation: int) -> int:
        """Reserve room for copper under this name; returns the token that commits it. Raises SocketError."""
        body = {"holder": holder, "cpu": wanted.cpus, "memory": wanted.memory_bytes, "generation": generation}
        return int((await self._asked("POST", "/v1/reserve", body))["token"])

    async def commit(self, holder: str, token: int) -> None:
        """Make a reservation a grant. Raises SocketError."""
        await self._asked("POST", f"/v1/reserve/{quote(holder, safe='')}/commit", {"token": token})

    async def release(self, holder: str) -> None:
        """Release a reservation or a grant. Raises SocketError."""
        await self._asked("DELETE", f"/v1/reserve/{quote(holder, safe='')}")

    async def _asked(self, method: str, path: str, body: Any = None) -> Any:
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.path), timeout=limit) as http,
                http.request(method, f"http://localhost{path}", json=body) as answer,
            ):
                data = json.loads(await answer.read())
                if answer.status >= 300:
                    raise SocketError(f"perphd answered {answer.status}: {str(data)[:200]}")
                return data
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
            text = str(exc) or type(exc).__name__
            raise SocketError(f"perphd gave no usable answer on {self.path}: {text}") from exc
