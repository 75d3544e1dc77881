"""Replaces small files atomically. Files of the state directory are complete even after a crash."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from perphd.domain.errors import ConfigError


def replace_readable(target: Path, text: str) -> None:
    """Replace a file of the runtime directory that every user may read; make its folder if needed. Raises OSError."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    target.parent.chmod(0o755)  # the daemon's umask keeps its files from other users
    temporary = target.with_name(f"{target.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
    os.replace(temporary, target)


def replace_text(target: Path, text: str | bytes, mode: int | None = None, *, synced: bool = True) -> None:
    """Replace a file's content; its directory is made if it is missing.

    ``mode``: its permissions from the first byte on, regardless of the umask; None: 0640 reduced by the umask.
    ``synced``: wait until it is on the disk. Otherwise a power failure may leave an empty file.

    Raises:
        ConfigError: it cannot be written; the old file is unchanged.
    """
    temporary = target.with_name(f".{target.name}.new")
    content = text.encode() if isinstance(text, str) else text
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o640 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
        if synced:
            sync_directory(target.parent)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError(str(target), "", f"cannot be written: {exc.strerror}") from exc


def sync_directory(path: Path | str) -> None:
    """Wait until the names in this directory are on the disk. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class StateFiles:
    """Replaces small files as ``replace_text`` does, in a thread of its own and in the order of the calls.

    Syncing a file can take arbitrarily long. A caller that does not need the result need not wait.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    def replace(self, target: Path, text: str) -> Future[None]:
        """Replace a file's text; the future raises ConfigError if it cannot be written."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, f"perphd-{self._name}")
        try:
            return self._thread.submit(replace_text, target, text)
        except RuntimeError as exc:  # no thread could be started: the limit on threads may be reached
            self.close()
            done: Future[None] = Future()
            done.set_exception(ConfigError(str(target), "", f"cannot be written: {exc}"))
            return done

    def close(self) -> None:
        """Wait for the requested replacements, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
