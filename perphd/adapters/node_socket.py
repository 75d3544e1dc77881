"""An adapter's access to the daemon of this node."""

from __future__ import annotations

import json

import aiohttp

from perphd.cluster.document import NodeDocument
from perphd.domain.errors import PerphError
from perphd.domain.reading import Unavailable
from perphd.domain.wire import decode


class NodeSocket:
    """The daemon's API on its Unix socket."""

    def __init__(self, path: str, timeout_s: float = 5.0) -> None:
        self.path, self._timeout_s = path, timeout_s

    async def document(self) -> NodeDocument | Unavailable:
        """The answer of ``GET /v1/node``, or why there is none."""
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.path), timeout=limit) as http,
                http.get("http://localhost/v1/node") as answer,
            ):
                data = json.loads(await answer.read())
                if answer.status != 200:
                    return Unavailable(f"perphd answered {answer.status}: {str(data)[:200]}")
                return decode(NodeDocument, data)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, PerphError) as exc:
            return Unavailable(f"perphd does not answer on {self.path}: {str(exc) or type(exc).__name__}")
