"""Injected faults of a resctrl tree: refused operations, and interference by other programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from perphd.sim.kernel.vfs import refuse


class Operation(Enum):
    """A kind of operation on the tree."""

    READ = "read"
    WRITE = "write"
    MKDIR = "mkdir"
    RMDIR = "rmdir"


@dataclass(slots=True)
class Fault:
    """The next ``times`` operations of this kind on a matching path fail with errno ``number``.

    ``path`` is a pattern (fnmatch) for the path below the mount point: ``*/schemata``, ``mon_groups/*``.
    ``text`` is the message in ``last_cmd_status``, if any. ``times`` None: until it is removed.
    """

    operation: Operation
    path: str
    number: int
    text: str | None = None
    times: int | None = 1


@dataclass(slots=True)
class Interference:
    """Before the next ``times`` matching operations, another program does ``action`` (writes, removes, unplugs)."""

    operation: Operation
    path: str
    action: Callable[[], None]
    times: int | None = 1


class FaultPlan:
    """Faults and interference that wait for their operation."""

    def __init__(self) -> None:
        self.waiting: list[Fault | Interference] = []
        self.told: list[tuple[Operation, str]] = []
        self._inside = False

    def add(self, event: Fault | Interference) -> None:
        """Activate a fault or an interference."""
        self.waiting.append(event)

    def clear(self) -> None:
        """Remove all faults and interferences."""
        self.waiting.clear()

    def pass_through(self, operation: Operation, path: str, say: Callable[[str], None]) -> None:
        """Run before an operation; raises a fault's OSError. Faults do not affect the interference itself."""
        if self._inside or not self.waiting:
            return
        for event in list(self.waiting):
            if event.operation is not operation or not fnmatchcase(path, event.path):
                continue
            if event.times is not None:
                event.times -= 1
                if event.times <= 0:
                    self.waiting.remove(event)
            self.told.append((operation, path))
            if isinstance(event, Interference):
                self._inside = True
                try:
                    event.action()
                finally:
                    self._inside = False
                continue
            if event.text is not None:
                say(event.text)
            raise refuse(event.number)
