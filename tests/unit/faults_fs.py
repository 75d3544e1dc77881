"""Kernel files that fail on demand: any operation of any writer, refused with any errno, or the last one of a process.

Works over every ``KernelFs`` there is: the fakes, the simulated host, systemd's units, and the running kernel. What
``rdt`` sees of them (``raw``) goes through the same gate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perphd.domain.errors import kernel_error
from perphd.host.fs import HeldFile, Identity, KernelFile, KernelFs, hold, write_within


class Killed(BaseException):
    """The process ends here, as by kill -9: nobody catches it, nothing is cleaned up."""


@dataclass(frozen=True)
class Operation:
    """What was asked of the kernel: ``write``, ``mkdir``, ``rmdir``, ``read``, ``identity`` or ``listdir``."""

    kind: str
    path: str
    text: str = ""

    @property
    def changes(self) -> bool:
        return self.kind in ("write", "mkdir", "rmdir")


@dataclass
class Gate:
    """Every operation passes here. ``refuse`` may raise, or answer an errno; ``after`` runs when it took effect."""

    refuse: Callable[[int, Operation], int | None] = lambda number, operation: None
    after: Callable[[int, Operation], None] = lambda number, operation: None
    seen: list[Operation] = field(default_factory=list)
    changes: int = 0

    @contextmanager
    def passing(self, operation: Operation) -> Iterator[None]:
        """Raises OSError with the errno that ``refuse`` says. Numbers count changes alone, from 0."""
        number = self.changes if operation.changes else -1
        self.seen.append(operation)
        if operation.changes:
            self.changes += 1
        if (refused := self.refuse(number, operation)) is not None:
            raise OSError(refused, os.strerror(refused))
        yield
        if operation.changes:
            self.after(number, operation)

    def heal(self) -> None:
        """Nothing fails any more; counting begins anew."""
        self.refuse, self.after = (lambda number, operation: None), (lambda number, operation: None)
        self.seen.clear()
        self.changes = 0


class FaultyFs:
    """A ``KernelFs`` behind a gate."""

    def __init__(self, inner: KernelFs, gate: Gate) -> None:
        self._inner, self.gate = inner, gate

    @property
    def raw(self) -> FaultyRaw:
        return FaultyRaw(self._inner.raw, self.gate)  # type: ignore[attr-defined]

    @contextmanager
    def _passing(self, kind: str, path: str, text: str = "") -> Iterator[None]:
        try:
            with self.gate.passing(Operation(kind, path, text)):
                yield
        except OSError as exc:
            raise kernel_error(exc, path, kind, text or None) from exc

    def open(self, path: str) -> KernelFile:
        with self._passing("read", path):
            return self._inner.open(path)

    def read(self, path: str) -> bytes:
        with self._passing("read", path):
            return self._inner.read(path)

    def write(self, path: str, data: bytes) -> None:
        with self._passing("write", path, data.decode().rstrip("\n")):
            self._inner.write(path, data)

    def write_within(self, path: str, data: bytes, identity: Identity) -> None:
        with self._passing("write", path, data.decode().rstrip("\n")):
            write_within(self._inner, path, data, identity)

    def hold(self, path: str, identity: Identity) -> HeldFile | None:
        held = hold(self._inner, path, identity)
        return None if held is None else FaultyFile(self, path, held)

    def listdir(self, path: str) -> list[str]:
        with self._passing("listdir", path):
            return self._inner.listdir(path)

    def subdirectories(self, path: str) -> list[str]:
        with self._passing("listdir", path):
            return self._inner.subdirectories(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def identity(self, path: str) -> tuple[int, int]:
        with self._passing("identity", path):
            return self._inner.identity(path)


class FaultyFile:
    """A file held open, behind the same gate."""

    def __init__(self, fs: FaultyFs, path: str, inner: HeldFile) -> None:
        self._fs, self._path, self._inner = fs, path, inner

    def read(self) -> bytes:
        with self._fs._passing("read", self._path):
            return self._inner.read()

    def write(self, data: bytes) -> None:
        with self._fs._passing("write", self._path, data.decode().rstrip("\n")):
            self._inner.write(data)

    def close(self) -> None:
        self._inner.close()


class FaultyRaw:
    """An ``rdt.Fs`` behind the same gate."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, path: str) -> Any:
        with self._gate.passing(Operation("read", path)):
            return self._inner.open(path)

    def read(self, path: str) -> bytes:
        with self._gate.passing(Operation("read", path)):
            return bytes(self._inner.read(path))

    def write(self, path: str, data: bytes) -> None:
        with self._gate.passing(Operation("write", path, data.decode(errors="replace").rstrip("\n"))):
            self._inner.write(path, data)

    def mkdir(self, path: str) -> None:
        with self._gate.passing(Operation("mkdir", path)):
            self._inner.mkdir(path)

    def rmdir(self, path: str) -> None:
        with self._gate.passing(Operation("rmdir", path)):
            self._inner.rmdir(path)
