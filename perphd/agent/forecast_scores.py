"""Exchanges forecast scores between the daemon and its forecast worker.

The worker writes its scores into a file in its folder. The daemon copies them into this host's contribution.
The worker reads the contributions of other hosts itself while a series is young, because pooling takes too long for
the daemon's ticks. The worker's last argument names the host for which it reads. The origins of its forecasts are
in another file, for ``perphctl model origin``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from perphd.domain.belief import ForecastOrigin, OriginHost, OriginLeftOut
from perphd.domain.errors import PerphError
from perphd.federated.contribution import MAX_BYTES, Name, Statistic
from perphd.federated.hardware import Hardware
from perphd.federated.pooling import Pooled
from perphd.host.state_files import replace_text

SCORES: Final = "scores.json"
"""Name of the file with the worker's scores, in its folder."""
ORIGINS: Final = "origins.json"
"""Name of the file with the origins of its forecasts, by workload."""
NAMES: Final = "applications.json"
"""Name of the file with the names by which other hosts know the workloads for which the worker has series."""
log = logging.getLogger("perphd")


_T = TypeVar("_T")


class Reader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The host that reads contributions.

    ``folder``: folder of contributions. ``expire_s``: age in seconds from which a contribution is ignored.
    """

    folder: str
    name: Name
    hardware: Hardware
    expire_s: Annotated[float, msgspec.Meta(gt=0.0)]


def reader_text(reader: Reader) -> str:
    """The worker's argument."""
    return msgspec.json.encode(reader).decode()


def reader_from(text: str) -> Reader:
    """The reader in the worker's argument.

    Raises:
        PerphError: the text is not such an argument.
    """
    try:
        return msgspec.json.decode(text, type=Reader)
    except msgspec.DecodeError as exc:
        raise PerphError(f"{text[:200]!r} does not describe a reader of contributions: {exc}") from exc


def write_scores(folder: Path, scores: tuple[Statistic, ...]) -> None:
    """Replace the worker's scores. Raises PerphError or OSError if the file cannot be written."""
    replace_text(folder / SCORES, msgspec.json.encode(scores), 0o600, synced=False)


def read_scores(folder: Path) -> tuple[Statistic, ...]:
    """The worker's last scores; empty if there are none, or the file is damaged."""
    path = folder / SCORES
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PerphError(f"it is larger than {MAX_BYTES >> 10} KiB")
        return msgspec.json.decode(path.read_bytes(), type=tuple[Statistic, ...])
    except FileNotFoundError:
        pass
    except (OSError, PerphError, ValueError, msgspec.DecodeError) as exc:
        log.warning("%s: forecast scores are not contributed: %s", path, exc)
    return ()


def written_at(folder: Path) -> int | None:
    """Time at which the worker last wrote its scores, in nanoseconds since 1970; None if it never did."""
    try:
        return (folder / SCORES).stat().st_mtime_ns
    except OSError:
        return None


def write_origins(folder: Path, origins: Mapping[str, tuple[ForecastOrigin, ...]]) -> None:
    """Replace the origins of each workload's forecasts. Raises PerphError or OSError if the file cannot be written."""
    replace_text(folder / ORIGINS, msgspec.json.encode(origins), 0o600, synced=False)


def read_origins(folder: Path) -> dict[str, tuple[ForecastOrigin, ...]]:
    """The origin of each workload's forecasts; nothing if the file is missing or damaged."""
    return _read(folder / ORIGINS, dict[str, tuple[ForecastOrigin, ...]])


def write_names(folder: Path, names: Mapping[str, str]) -> None:
    """Replace the application of each workload. Raises PerphError or OSError if the file cannot be written."""
    replace_text(folder / NAMES, msgspec.json.encode(names), 0o600, synced=False)


def read_names(folder: Path) -> dict[str, str]:
    """The application of each workload; nothing if the file is missing or damaged."""
    return _read(folder / NAMES, dict[str, str])


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, msgspec.DecodeError) as exc:
        log.warning("%s: cannot be read: %s", path, exc)
    return kind()


def origin_hosts(told: Pooled) -> tuple[tuple[OriginHost, ...], tuple[OriginLeftOut, ...]]:
    """The hosts whose contributions were used, and those whose contributions were left out."""
    hosts = tuple(
        OriginHost(s.contributor, s.generation, s.age_s, s.distance, s.version, s.share) for s in told.sources
    )
    return hosts, tuple(OriginLeftOut(each.contributor, each.reason) for each in told.left_out)
