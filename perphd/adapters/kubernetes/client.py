"""The few Kubernetes API calls that perphd needs, over aiohttp.

perphd has aiohttp already; the official client adds 126 MB. Error classes tell the caller what to do:
    ApiUnreachable  no answer, a late one, or an overloaded or failing server (408, 429, 5xx): retry after a pause
    ApiConflict     another write came first (409), or a test of a JSON patch failed (422): read again, then decide
    Expired         the resource version of a watch is too old (410): list again
    ApiMissing      the object does not exist (404)
    Forbidden       the account lacks a permission (401, 403): a person must grant it
    Rejected        the request is invalid: never retry
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from perphd.adapters.backoff import MOST_PAUSE_S, Backoff
from perphd.domain.errors import PerphError

TIMEOUT_S: Final = 10.0
WATCH_S: Final = 290.0
"""Seconds after which the server ends a watch; the next watch continues from the last version."""
SILENT_S: Final = 330.0
"""Seconds without a byte after which a watch is considered dead."""
LEAST_WATCH_S: Final = 1.0
"""A watch that ends within fewer seconds and without an event counts as a failure. Proxies in front of a server that is
still starting end watches in this way.
"""
PAGE: Final = 500
_LINE_BYTES: Final = 1 << 22
"""Maximum length of a watch's line in bytes: etcd refuses objects over 1.5 MiB."""
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""
JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Requests a list with only the metadata of its objects."""
MANAGER: Final = "perphd-publish"
"""Field manager of server-side apply."""


class KubernetesError(PerphError):
    """A request that the API server did not fulfil."""

    def __init__(self, request: str, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{request}: {status or 'no answer'}: {message[:300]}")


class ApiUnreachable(KubernetesError):
    """No answer, a late one, or an overloaded server. ``pause_s``: the pause that the server requested."""

    pause_s: float = 0.0


class ApiConflict(KubernetesError):
    """Another write came first."""


class Expired(KubernetesError):
    """The resource version is too old."""


class ApiMissing(KubernetesError):
    """The object does not exist."""


class Forbidden(KubernetesError):
    """The account lacks the permission."""


class Rejected(KubernetesError):
    """The request is invalid."""


_CLASSES: Final[Mapping[int, type[KubernetesError]]] = {
    401: Forbidden, 403: Forbidden, 404: ApiMissing, 409: ApiConflict, 410: Expired, 422: ApiConflict,
    408: ApiUnreachable, 429: ApiUnreachable,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Address (a path is allowed) and credentials of the API server. ``ca_file`` empty: the system's authorities."""

    url: str
    token_file: str = ""
    ca_file: str = ""

    @classmethod
    def in_cluster(cls, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT) -> ApiAccess:
        """The access that the kubelet gives every pod.

        Raises:
            PerphError: this process does not run in a pod.
        """
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise PerphError(
                "this process does not run in a pod (KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set): "
                "give --api-server, --token-file and --ca-file "
                "(or run kubectl proxy and give --api-server http://127.0.0.1:8001)"
            )
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", f"{account}/token", f"{account}/ca.crt")


class ApiClient:
    """Sends requests as one account. The token is read for each request, because the kubelet renews it in place."""

    def __init__(self, access: ApiAccess, timeout_s: float = TIMEOUT_S) -> None:
        self._access, self._timeout_s = access, timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context: ssl.SSLContext | bool = True
        if self._access.ca_file:
            try:
                context = ssl.create_default_context(cafile=self._access.ca_file)
            except OSError as exc:
                raise PerphError(
                    f"{self._access.ca_file}: cannot be read as certificates of an authority (PEM): {exc}"
                ) from exc
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=20),
            read_bufsize=_LINE_BYTES // 2,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **query: str) -> Any:
        """Read an object."""
        return await self.request("GET", path, query=query)

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        """Patch an object with a patch of this kind; returns the result."""
        return await self.request("PATCH", path, body, kind)

    async def apply(self, path: str, body: Any) -> Any:
        """Create the object or take over the fields given here (server-side apply); returns the result."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self.request("PATCH", path, body, APPLY, query)

    async def post(self, path: str, body: Any) -> Any:
        """Create an object; returns it."""
        return await self.request("POST", path, body)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = JSON,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> Any:
        """Send one request; returns the JSON answer.

        Raises:
            KubernetesError: its class tells the caller what to do.
        """
        shown = f"{method} {path}"
        data = None if body is None else json.dumps(body)
        try:
            async with self._http().request(
                method, self._url(path), data=data, params=query, headers=self._headers(kind, accept)
            ) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise _error(shown, answer.status, text, answer.headers)
                return json.loads(text) if text else None
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise ApiUnreachable(shown, 0, str(exc) or type(exc).__name__) from exc
        except ValueError as exc:
            raise ApiUnreachable(shown, 0, f"the answer is not JSON: {exc}") from exc

    async def list_all(self, path: str, accept: str = JSON, **query: str) -> tuple[list[Any], str]:
        """All objects, read in pages, and the resource version from which to watch. ``accept``: JSON or METADATA."""
        items: list[Any] = []
        page = {**query, "limit": str(PAGE)}
        while True:
            answer = await self.request("GET", path, query=page, accept=accept)
            items += answer.get("items") or []
            metadata = answer.get("metadata", {})
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            page["continue"] = metadata["continue"]
            page.pop("resourceVersion", None)  # the API server refuses both parameters together

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield (kind, object) for every change after ``version``, bookmarks included, until the server ends the watch.

        Raises:
            KubernetesError: ``Expired`` if the version is too old.
        """
        asked = {
            **query, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": f"{WATCH_S:.0f}",
        }  # fmt: skip
        shown = f"WATCH {path}"
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=SILENT_S)
        try:
            async with self._http().get(
                self._url(path), params=asked, headers=self._headers(), timeout=limit
            ) as answer:
                if answer.status >= 400:
                    raise _error(shown, answer.status, await answer.text(), answer.headers)
                while line := await answer.content.readline():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise _error(shown, int(status.get("code", 500)), json.dumps(status), {})
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as exc:
            raise ApiUnreachable(shown, 0, str(exc) or type(exc).__name__) from exc

    def _url(self, path: str) -> str:
        return f"{self._access.url}{path}"  # a base_url would drop the path of a proxy's address

    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside its context manager"
        return self._session

    def _headers(self, kind: str = JSON, accept: str = JSON) -> dict[str, str]:
        headers = {"Content-Type": kind, "Accept": accept}
        if self._access.token_file:
            try:
                headers["Authorization"] = f"Bearer {Path(self._access.token_file).read_text().strip()}"
            except OSError as exc:
                raise ApiUnreachable("authorise", 0, f"{self._access.token_file}: {exc.strerror}") from exc
        return headers


async def follow(
    client: ApiClient,
    path: str,
    replaced: Callable[[list[Any]], None],
    changed: Callable[[str, Any], None],
    troubled: Callable[[KubernetesError, float], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    **query: str,
) -> None:
    """List, then watch, forever. No change is lost: after a failure the watch resumes or lists again.

    Args:
        client: sends the requests.
        path: path of the collection.
        replaced: called with all objects after each list.
        changed: called with (ADDED, MODIFIED or DELETED, object).
        troubled: called with each failure and the pause before the next try; an expired version (410) is not a failure.
        sleep: waits for a number of seconds.
        clock: monotonic time in seconds.
        query: label and field selectors.
    """
    backoff, version = Backoff(), ""
    while True:
        try:
            if not version:
                items, version = await client.list_all(path, **query)
                replaced(items)
            begun_s, is_silent = clock(), True
            async for kind, item in client.watch(path, version, **query):
                is_silent = False
                version = item["metadata"]["resourceVersion"]
                backoff.succeeded()
                if kind != "BOOKMARK":
                    changed(kind, item)
            if is_silent and clock() - begun_s < LEAST_WATCH_S:
                await sleep(backoff.failed())
            else:
                backoff.succeeded()
        except Expired:
            version = ""
            await sleep(backoff.failed())
        except KubernetesError as exc:
            pause_s = backoff.failed(getattr(exc, "pause_s", 0.0))
            if not isinstance(exc, ApiUnreachable):
                version = ""
            troubled(exc, pause_s)
            await sleep(pause_s)


def _error(request: str, status: int, text: str, headers: Mapping[str, str]) -> KubernetesError:
    message = text
    with contextlib.suppress(ValueError, AttributeError):
        message = str(json.loads(text).get("message", text))
    kind = _CLASSES.get(status, ApiUnreachable if status >= 500 else Rejected)
    error = kind(request, status, message)
    if isinstance(error, ApiUnreachable):
        with contextlib.suppress(ValueError):
            error.pause_s = min(MOST_PAUSE_S, float(headers.get("Retry-After", 0)))
    return error
