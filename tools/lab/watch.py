"""Settings in force over time: the groups' files, read five times a second and recorded on change."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tools.lab.groups import Groups

_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Setting:
    """A group's knobs as seen at ``at_s`` (monotonic)."""

    at_s: float
    group: str
    knobs: dict[str, str]


class Watcher:
    """Reads the groups in a thread until stopped. Use as a context manager."""

    def __init__(self, groups: Groups, names: Sequence[str]) -> None:
        self._groups, self._names = groups, names
        self._stop = threading.Event()
        self._last: dict[str, dict[str, str]] = {}
        self.seen: list[Setting] = []
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._look()

    def _look(self) -> None:
        for name in self._names:
            knobs = self._groups.knobs(name)
            if knobs != self._last.get(name):
                self._last[name] = knobs
                self.seen.append(Setting(time.monotonic(), name, knobs))
