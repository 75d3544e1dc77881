"""systemd's notification protocol (sd_notify), when started by systemd; silent otherwise."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Protocol, cast

log = logging.getLogger("perphd")


class _Daemon(Protocol):
    def notify(self, status: str) -> bool: ...


class Notifier:
    """Tells systemd about readiness, reloading, stopping, and that the loop is alive (WATCHDOG=1). Never raises."""

    def __init__(self) -> None:
        self._daemon: _Daemon | None = None
        self._failed = False
        if not os.environ.get("NOTIFY_SOCKET"):
            return
        try:
            daemon = importlib.import_module("systemd.daemon")
        except ImportError:
            log.error(
                "started by systemd, but the Python package systemd-python is missing: cannot report readiness"
            )
            return
        self._daemon = cast(_Daemon, daemon)

    def ready(self, status: str) -> None:
        """The daemon samples and answers."""
        self._tell(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again."""
        self._tell("RELOADING=1")

    def stopping(self) -> None:
        """Settings are being given back."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """The loop turned."""
        self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        if self._daemon is None:
            return
        try:
            self._daemon.notify(text)
        except OSError as exc:
            if not self._failed:
                what = text.partition("\n")[0]
                log.error("systemd could not be told %s: %s; said once, tried again every time", what, exc)
            self._failed = True
