"""Requests memory reclaim through ``memory.reclaim``, which changes no setting and may free less than asked.

Handles one request at a time in a separate thread. No caller waits for a request, and a request needs no rollback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from posixpath import dirname
from typing import Final

from perphd.domain.errors import Busy, KernelError
from perphd.domain.plan import Write
from perphd.host.fs import Identity, KernelFs, write_within

RECLAIM: Final = "memory.reclaim"


class Reclaimer:
    """Writes ``memory.reclaim`` files. ``in_thread``: False runs inline (simulated hosts)."""

    def __init__(self, fs: KernelFs, in_thread: bool) -> None:
        self._fs = fs
        self._thread = _thread() if in_thread else None
        self._running: Future[None] | None = None
        self._done: list[tuple[Write, str]] = []

    @property
    def is_busy(self) -> bool:
        """True while the kernel works on a request."""
        return self._running is not None and not self._running.done()

    def submit(self, requests: Sequence[Write], identities: Mapping[str, Identity]) -> None:
        """Start these requests in directories with these identities; ignored while an earlier one is running."""
        if not requests or self.is_busy:
            return
        if self._thread is None:
            self._reclaim(requests, identities)
        else:
            try:
                self._running = self._thread.submit(self._reclaim, requests, identities)
            except RuntimeError as exc:  # no thread could be started; do not leave the requests queued
                self.close()
                self._thread = _thread()
                self._done += [(request, f"failed: {exc}") for request in requests]

    def outcomes(self) -> list[tuple[Write, str]]:
        """Outcomes of requests since the last call, as texts."""
        done, self._done = self._done, []
        return done

    def _reclaim(self, requests: Sequence[Write], identities: Mapping[str, Identity]) -> None:
        for request in requests:
            try:
                identity = identities.get(dirname(request.path))
                write_within(self._fs, request.path, f"{request.value}\n".encode(), identity)
                outcome = "reclaimed"
            except Busy:
                outcome = "reclaimed in part: there was less to reclaim"
            except KernelError as exc:
                outcome = f"failed: {exc}"
            self._done.append((request, outcome))

    def close(self) -> None:
        """End the thread without waiting for a running request."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perphd-reclaim")
