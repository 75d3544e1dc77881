"""A folder of contributions: ``NAME.json`` from each host, and ``NAME.withdrawn`` for a host whose document
is ignored.

A file may contain only the document of the host that it is named after. The operator's tools copy the files:
a shared file system, configuration management or an object store.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from perphd.domain.errors import PerphError, kernel_error
from perphd.domain.utf8 import printable
from perphd.federated.contribution import (
    MAX_BYTES,
    Contribution,
    ContributionRefused,
    Name,
    Topic,
    from_text,
    to_text,
)
from perphd.federated.ledger import EVERY_GENERATION, ContributionLedger, Withdrawal, of_documents

MOST_FILES: Final = 1024
"""Maximum number of files to read, in order of their names; further files add little."""
MOST_PROBLEMS: Final = 8
_SUFFIX, _WITHDRAWN = ".json", ".withdrawn"
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.@-]")


def this_host() -> str:
    """The name of this host; in a pod, the name of its node (``NODE_NAME``), because each pod has its own name."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


def contributor_name(host: str) -> str:
    """The name under which a host contributes."""
    name = _UNUSUAL.sub("-", host)[:63]
    return name if name[:1].isalnum() else f"h{name}"[:63]


class ContributionFolder:
    """A folder of contributions, as the module describes it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def read(self, topics: Collection[Topic] | None = None) -> tuple[ContributionLedger, tuple[str, ...]]:
        """Read the folder: the ledger of its valid files, and the problems of the others. Never raises.

        ``topics``: keep only statistics about these topics, because those of a whole fleet may not fit in memory.
        None: keep the statistics about all topics.
        """
        contributions, withdrawals, problems = [], [], []
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder))
        except FileNotFoundError:
            return ContributionLedger(), ()
        except OSError as exc:
            return ContributionLedger(), (f"{self.folder}: cannot be read: {exc.strerror}",)
        wanted = [name for name in names if name.endswith((_SUFFIX, _WITHDRAWN)) and name[0] != "."]
        # Withdrawals come first, so that the limit on files drops none of them.
        wanted.sort(key=lambda name: not name.endswith(_WITHDRAWN))
        for name in wanted[:MOST_FILES]:
            try:
                if name.endswith(_WITHDRAWN):
                    withdrawals.append(self._withdrawal(name))
                else:
                    contributions.append(_about(self._contribution(name), topics))
            except (PerphError, OSError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else exc
                problems.append(printable(f"{self.folder / name}: not used: {reason}"))
        if len(wanted) > MOST_FILES:
            problems.append(f"{self.folder}: {len(wanted)} files, of which {MOST_FILES} are read")
        return of_documents(contributions, withdrawals), _shortened(problems)

    def has(self, contributor: str) -> bool:
        """True if there is a document of this name, readable or not."""
        try:
            (self.folder / (contributor + _SUFFIX)).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # this user may not enter the folder: assume that there is one
            return True
        return True

    def contributors(self) -> tuple[str, ...]:
        """The hosts whose documents are here, readable or not; none if the folder cannot be read."""
        with contextlib.suppress(OSError):
            names = sorted(entry.name for entry in os.scandir(self.folder))
            return tuple(n.removesuffix(_SUFFIX) for n in names if n.endswith(_SUFFIX) and n[0] != ".")
        return ()

    def remove(self, contributor: str) -> None:
        """Remove the document of this contributor, if there is one.

        Raises:
            KernelError: it could not be removed.
        """
        path = self.folder / (contributor + _SUFFIX)
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            raise kernel_error(exc, str(path), "remove") from exc

    def take(self, other: ContributionFolder, contributor: str) -> None:
        """Move a contributor's document here from another folder on the same file system.

        Raises:
            KernelError: it could not be moved.
        """
        name = contributor + _SUFFIX
        try:
            (other.folder / name).replace(self.folder / name)
        except OSError as exc:
            raise kernel_error(exc, str(self.folder / name), "write") from exc

    def own(self, contributor: str) -> Contribution | None:
        """The present document of this contributor; None if there is none, or it cannot be read."""
        with contextlib.suppress(PerphError, OSError):
            return self._contribution(contributor + _SUFFIX)
        return None

    def write(self, contribution: Contribution) -> Path:
        """Replace the contributor's document.

        Raises:
            ContributionRefused: it contains a value that readers would refuse.
            KernelError: the new document could not be written; the old one is unchanged.
        """
        return self._replace(contribution.contributor + _SUFFIX, to_text(contribution))

    def withdraw(self, contributor: str, through: int = EVERY_GENERATION) -> Path:
        """Withdraw the contributor's documents up to this generation.

        Raises:
            PerphError: no host can have this name, or the file could not be written.
        """
        _check_name(contributor)
        text = msgspec.json.encode(Withdrawal(contributor, through))
        return self._replace(contributor + _WITHDRAWN, text + b"\n")

    def reinstate(self, contributor: str) -> bool:
        """Undo the contributor's withdrawal; False if there was none.

        Raises:
            PerphError: no host can have this name, or the file could not be removed.
        """
        _check_name(contributor)
        path = self.folder / (contributor + _WITHDRAWN)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise kernel_error(exc, str(path), "remove") from exc
        return True

    def _contribution(self, name: str) -> Contribution:
        found = from_text(self._text(name, MAX_BYTES))
        if found.contributor + _SUFFIX != name:
            raise ContributionRefused(
                f"it is from {found.contributor}, but its file is named after another host"
            )
        return found

    def _withdrawal(self, name: str) -> Withdrawal:
        found = _decoded(self._text(name, 4096))
        if found.contributor + _WITHDRAWN != name:
            raise ContributionRefused(
                f"it is about {found.contributor}, but its file is named after another host"
            )
        return found

    def _text(self, name: str, most: int) -> bytes:
        """A regular file's content; pipes and devices are refused, because reading them could block."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        fd = os.open(self.folder / name, flags)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ContributionRefused("it is not a regular file")
            return file.read(most + 1)

    def _replace(self, name: str, text: bytes) -> Path:
        """Replace a file, and sync it to the disk.

        Other programs may write into the folder. Unlike ``state_files.replace_text``, this method therefore never
        opens a file or a link that already has the temporary name.
        """
        path = self.folder / name
        temporary = self.folder / f".{name}.new"
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with _created(temporary) as fd:
                with os.fdopen(fd, "wb", closefd=False) as file:
                    file.write(text)
                os.fsync(fd)
            temporary.replace(path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                temporary.unlink()
            advice = (
                "let perphd write there (ReadWritePaths= in a drop-in of the service), or name another folder"
            )
            raise kernel_error(exc, str(path), "write", advice=advice) from exc
        return path


def _about(found: Contribution, topics: Collection[Topic] | None) -> Contribution:
    if topics is None:
        return found
    kept = tuple(each for each in found.statistics if each.topic in topics)
    return msgspec.structs.replace(found, statistics=kept)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _check_name(contributor: str) -> None:
    try:
        msgspec.convert(contributor, Name)
    except msgspec.ValidationError as exc:
        allowed = "1 to 63 letters, digits, '_', '.', '@' or '-', with a letter or digit first"
        raise ContributionRefused(
            f"{contributor!r} is not a valid name for a host's file (allowed: {allowed})"
        ) from exc


def _decoded(text: bytes) -> Withdrawal:
    try:
        return msgspec.json.decode(text, type=Withdrawal)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ContributionRefused(f"it is not a withdrawal: {exc}") from exc


def _shortened(problems: list[str]) -> tuple[str, ...]:
    more = len(problems) - MOST_PROBLEMS
    return (*problems[:MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else []))
