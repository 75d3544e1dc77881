"""An S3-compatible server on loopback that counts requests and can die after one of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BUCKET = "perphd-tests"
logging.getLogger("werkzeug").setLevel(logging.ERROR)
DENIED = b"<Error><Code>AccessDenied</Code><Message>the client is dead</Message></Error>"
"""Answer to requests of a client that counts as dead; the client library does not retry it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``headers``: names in lower case; ``bytes``: of its body."""

    method: str
    key: str
    query: str
    bytes: int
    headers: frozenset[str]


class ObjectServer:
    """``requests``: all requests in order; ``dies_after``: number of requests that still take effect.

    The answer to the last of these is lost.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.requests: list[Request] = []
        self.dies_after: int | None = None
        self._lock = threading.Lock()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}?scheme=http&region=us-east-1&endpoint_override={self.address}"

    def revive(self) -> None:
        """Let later requests take effect, and restart the count."""
        with self._lock:
            self.requests.clear()
            self.dies_after = None

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Any) -> Any:
        with self._lock:
            self.requests.append(
                Request(
                    environ["REQUEST_METHOD"],
                    environ["PATH_INFO"],
                    environ["QUERY_STRING"],
                    int(
                        environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or 0
                    ),
                    frozenset(
                        key[5:].replace("_", "-").lower() for key in environ if key.startswith("HTTP_")
                    ),
                )
            )
            count = len(self.requests)
            dead = self.dies_after
        if dead is not None and count >= dead:
            if count == dead:
                list(self._app(environ, lambda *_: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [DENIED]
        return self._app(environ, start)


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """A server with one bucket, and credentials for it in the environment."""
    from pyarrow import fs

    saved = {key: os.environ.get(key) for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    os.environ |= dict.fromkeys(saved, "testing")
    server = ObjectServer()
    try:
        client = fs.S3FileSystem(
            endpoint_override=server.address, scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        client.create_dir(BUCKET)
        server.revive()
        yield server
    finally:
        server.stop()
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
