"""Part names and the manifest of a committed dataset."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from perphd.domain import wire
from perphd.domain.errors import PerphError
from perphd.domain.wire import WireError

SUCCESS: Final = "_SUCCESS"
"""Name of the manifest. Without it, the dataset does not exist for readers."""
FORMAT: Final = 1
MOST_MANIFEST_BYTES: Final = 16 << 20
"""Maximum size of a manifest, enough for about 60 000 parts. A larger file of this name is not a manifest."""
_NAME: Final = re.compile(r"part-\d{5,}_attempt_[0-9a-z-]+_\d+_\d+(\.[0-9A-Za-z]+)*")
_NUMBERS: Final = itertools.count()


class DatasetError(PerphError):
    """A dataset cannot be written or read; the text states the reason."""


class NotCommitted(DatasetError):
    """The dataset has no manifest: for readers, it does not exist (yet)."""


class Damaged(DatasetError):
    """The manifest, or a part that it names, is not as committed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a dataset.

    ``source``: the table or file whose content it holds. ``rows``: number of rows of a table, else None.
    """

    name: str
    source: str
    bytes: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All parts of one attempt. ``producer``: program and version. ``facts``: the producer's texts, by name."""

    attempt: str
    producer: str
    parts: tuple[Part, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all parts together."""
        return sum(part.bytes for part in self.parts)


def new_attempt(boot_id: str) -> str:
    """A unique attempt name: boot, process, and a counter within the process.

    Args:
        boot_id: this boot's id (/proc/sys/kernel/random/boot_id), unique among hosts and boots.
    """
    return f"{boot_id.strip()}_{os.getpid()}_{next(_NUMBERS)}"


def part_name(number: int, attempt: str, suffix: str) -> str:
    """The final name of a part; ``suffix`` begins with a dot, or is empty."""
    return f"part-{number:05d}_attempt_{attempt}{suffix}"


def encode(manifest: Manifest) -> bytes:
    """The content of ``_SUCCESS``."""
    data = {"format": FORMAT, **asdict(manifest), "parts": [asdict(part) for part in manifest.parts]}
    return (json.dumps(data, indent=1) + "\n").encode()


def decode(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Raises:
        Damaged: the bytes are not a manifest, or its format is not supported.
    """
    try:
        found: Any = json.loads(data)
        if found["format"] != FORMAT:
            raise Damaged(
                f"{where}: manifest format {found['format']!r} is not supported (allowed: {FORMAT})"
            )
        manifest = wire.decode(Manifest, found)
    except WireError as exc:
        raise Damaged(f"{where}: not a manifest of perphd: {exc}") from exc
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise Damaged(f"{where}: not a manifest of perphd: {exc!r}") from exc
    for part in manifest.parts:
        if part.bytes < 0:
            raise Damaged(f"{where}: not a manifest of perphd: part {part.name!r} has {part.bytes} bytes")
        if not _NAME.fullmatch(part.name) or f"_attempt_{manifest.attempt}" not in part.name:
            raise Damaged(f"{where}: names {part.name!r}, which is not a part of attempt {manifest.attempt}")
    return manifest
