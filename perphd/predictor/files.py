"""Model files: one per LRA, replaced atomically, with the previous good one beside it.

``NAME.json`` is the model. ``NAME.json.last`` is the previous one, which is read if the model is damaged.
``NAME.json.aside`` holds a refused, reset or removed model and is read only by ``perphctl model import``.
Models of earlier versions of an application are in ``versions/NAME/``, one file for each of the newest few.
They are kept for a month after the application has gone, and used again if it returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd.domain.errors import kernel_error
from perphd.predictor.persist import MAX_BYTES, ModelFile, ModelFileError, from_text

LAST: Final = ".last"
ASIDE: Final = ".aside"
KEPT_ASIDE: Final = 64
"""Number of files to keep aside, newest first, so that changing workload names cannot fill the disk."""
KEPT_VERSIONS: Final = 4
"""Number of earlier versions per application whose models are kept, newest first."""
KEPT_GONE_S: Final = 30 * 86400.0
"""Seconds for which the models of versions are kept after their application went away."""
KEPT_GONE: Final = 32
"""Maximum number of applications that are gone and whose version models are kept, the latest first."""
_VERSIONS: Final = "versions"
_NEW: Final = ".new"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading one LRA's model.

    ``file``: None if a fresh model is needed. ``problems``: messages about irregularities.
    """

    file: ModelFile | None
    problems: tuple[str, ...] = ()


class ModelFiles:
    """The model files of one directory. Not thread-safe."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = str(directory)
        self._good: set[str] = set()

    def path(self, lra: str) -> str:
        """The file of an LRA, whose name was checked on declaration and holds no slash."""
        return f"{self.directory}/{lra}.json"

    def load(self, lra: str, fits: Callable[[ModelFile], str]) -> Loaded:
        """The LRA's model, else the previous one. Never raises; irregularities are reported in ``problems``.

        Args:
            lra: its name.
            fits: returns the reason why a file does not belong to this LRA; empty if it does.
        """
        path = self.path(lra)
        problems: list[str] = []
        for candidate in (path, path + LAST):
            try:
                file = self._read(candidate)
                if reason := fits(file):
                    raise ModelFileError(reason)
            except FileNotFoundError:
                continue
            except OSError as exc:
                problems.append(f"{candidate}: cannot be read: {exc.strerror}")
            except ModelFileError as exc:
                problems.append(f"{candidate}: not used: {exc}")
                if candidate == path:  # otherwise a later save would keep this file as the last good one
                    with contextlib.suppress(OSError):
                        os.replace(path, path + ASIDE)
            else:
                if candidate == path:
                    self._good.add(lra)
                if problems:
                    problems.append("the last good model is used")
                return Loaded(file, tuple(problems))
        if problems:
            problems.append("learning starts over")
        return Loaded(None, tuple(problems))

    def save(self, lra: str, text: str) -> None:
        """Replace the LRA's file with this text, synced; a crash leaves the old or the new file.

        Raises:
            KernelError: the new file could not be written; the old one is unchanged.
        """
        path = self.path(lra)
        self._replace(path, text, keep_last=lra in self._good)
        self._good.add(lra)

    def keep_version(self, lra: str, version: str, text: str) -> None:
        """Keep the model of a version that no longer runs; deletes the oldest beyond ``KEPT_VERSIONS``.

        Raises:
            KernelError: it could not be written.
        """
        path = self._version_path(lra, version)
        self._replace(path, text, keep_last=False)
        with contextlib.suppress(OSError):
            kept = sorted(self._version_files(lra), key=lambda entry: entry.stat().st_mtime_ns)
            for entry in kept[:-KEPT_VERSIONS]:
                os.unlink(entry.path)

    def load_version(self, lra: str, version: str, fits: Callable[[ModelFile], str]) -> Loaded:
        """The kept model of this version of an application, if any. Never raises."""

        def fits_and_is(file: ModelFile) -> str:
            is_version = file.provenance.app_version
            return fits(file) or ("" if is_version == version else f"it belongs to version {is_version!r}")

        return self._load_version(self._version_path(lra, version), fits_and_is)

    def load_newest_version(self, lra: str, fits: Callable[[ModelFile], str]) -> Loaded:
        """The kept model of the version that ran last, if any. Never raises."""
        try:
            newest = max(self._version_files(lra), key=lambda entry: entry.stat().st_mtime_ns, default=None)
        except OSError as exc:
            return Loaded(None, (f"{self.directory}/{_VERSIONS}/{lra}: cannot be read: {exc.strerror}",))
        return Loaded(None) if newest is None else self._load_version(newest.path, fits)

    def drop_gone(self, present: Collection[str], now_unix_s: float) -> None:
        """Delete version models of applications that disappeared too long ago, or exceed the maximum number.

        ``present``: names of the LRAs whose files stay. Files that cannot be examined stay as well.
        """
        gone = []
        with contextlib.suppress(OSError), os.scandir(f"{self.directory}/{_VERSIONS}") as found:
            for entry in found:
                if entry.name not in present and entry.is_dir(follow_symlinks=False):
                    gone.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        gone.sort(reverse=True)
        for place, (went_unix_s, lra) in enumerate(gone):
            if place >= KEPT_GONE or now_unix_s - went_unix_s > KEPT_GONE_S:
                with contextlib.suppress(OSError):
                    self._drop_versions(lra)

    def _load_version(self, path: str, fits: Callable[[ModelFile], str]) -> Loaded:
        try:
            file = self._read(path)
            if reason := fits(file):
                raise ModelFileError(reason)
        except FileNotFoundError:
            return Loaded(None)
        except OSError as exc:
            return Loaded(None, (f"{path}: cannot be read: {exc.strerror}",))
        except ModelFileError as exc:
            with contextlib.suppress(OSError):
                os.unlink(path)
            return Loaded(None, (f"{path}: not used: {exc}",))
        return Loaded(file)

    def kept_versions(self, lra: str, but: str) -> int:
        """Number of versions other than ``but`` whose models are kept."""
        try:
            names = {entry.name for entry in self._version_files(lra)}
        except OSError:
            return 0
        return len(names - {os.path.basename(self._version_path(lra, but))})

    def _version_path(self, lra: str, version: str) -> str:
        key = hashlib.sha256(version.encode(errors="replace")).hexdigest()[:16]
        return f"{self.directory}/{_VERSIONS}/{lra}/{key}.json"

    def _version_files(self, lra: str) -> list[os.DirEntry[str]]:
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(f"{self.directory}/{_VERSIONS}/{lra}") as found,
        ):
            return [entry for entry in found if entry.name.endswith(".json")]
        return []

    def _replace(self, path: str, text: str, keep_last: bool) -> None:
        temporary = path + _NEW
        directory = os.path.dirname(path)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if keep_last:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, path + LAST)
            os.replace(temporary, path)
            self._sync(directory)
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise kernel_error(
                exc, path, "write", advice="everything learned since the last save is lost at stop"
            ) from exc

    def put_aside(self, lra: str, with_versions: bool = True) -> None:
        """Move the LRA's files aside, so that they are not read again.

        ``with_versions``: also delete the models of its versions.

        Raises:
            KernelError: they could not be moved.
        """
        path = self.path(lra)
        self._good.discard(lra)
        try:
            for name in (path + LAST, path):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(name, path + ASIDE)
            with contextlib.suppress(FileNotFoundError):
                self._drop_oldest_aside()
                self._sync(self.directory)
            if with_versions:
                self._drop_versions(lra)
        except OSError as exc:
            raise kernel_error(exc, path, "rename") from exc

    def _drop_versions(self, lra: str) -> None:
        for entry in self._version_files(lra):
            os.unlink(entry.path)
        with contextlib.suppress(OSError):  # missing, or not empty
            os.rmdir(f"{self.directory}/{_VERSIONS}/{lra}")

    def _drop_oldest_aside(self) -> None:
        aside = [entry for entry in os.scandir(self.directory) if entry.name.endswith(ASIDE)]
        if len(aside) > KEPT_ASIDE:
            aside.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
            for entry in aside[:-KEPT_ASIDE]:
                os.unlink(entry.path)

    def _read(self, path: str) -> ModelFile:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        return from_text(data)

    def _sync(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
