"""The forecast worker's files: its ``state``, its publications, and usage profiles.

The state consists of a head and one part for each series and each resource of the host, each with a length
prefix, so that saving needs no second copy in memory. A damaged or foreign file is refused as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from perphd.domain.errors import PerphError
from perphd.domain.forecast import MEMORY_FILE, PUBLISHED_FILE, SUMMARY_FILE, Forecasts, MemoryForecast
from perphd.domain.wire import encode, json_of
from perphd.forecast import records, usage_profile
from perphd.forecast.following import Followed
from perphd.forecast.host_peaks import HostPeaks
from perphd.forecast.usage_profile import UsageProfile
from perphd.predictor.arrays import pack, unpack

STATE: Final = "state"
PROFILE: Final = "usage-profile.json"
IMPORTED: Final = "usage-profiles.d"
"""Profiles of other nodes, one file each; the worker merges them."""
_FORMAT: Final = b"perphd forecast state 2\n"
_LENGTH: Final = 8
MAX_PROFILE_BYTES: Final = 64 << 20


class FileRefused(PerphError):
    """A file cannot be read or written, or has another format."""


@dataclass(frozen=True, slots=True)
class Known:
    """The worker's state: series by workload and reading, and the host's peaks by resource."""

    series: Mapping[tuple[str, str], Followed] = field(default_factory=dict)
    hosts: Mapping[str, HostPeaks] = field(default_factory=dict)


def save_state(folder: Path, known: Known) -> None:
    """Replace the state. Raises OSError if it cannot be written; the old state is then unchanged."""

    def write(file: BinaryIO) -> None:
        file.write(_FORMAT)
        for (workload, series), followed in known.series.items():
            about, arrays = records.series_record(followed)
            _write_part(file, pack({"workload": workload, "series": series, "is": about}, arrays))
        for resource, host in known.hosts.items():
            about, arrays = records.host_record(host)
            _write_part(file, pack({"resource": resource, "is": about}, arrays))
        _write_part(file, b"")  # end marker, which a truncated file lacks

    _replace(folder / STATE, write, sync=True)


def load_state(folder: Path) -> Known:
    """The saved state; empty if there is none.

    Raises:
        FileRefused: it cannot be read, or is not a state file.
    """
    path = folder / STATE
    series: dict[tuple[str, str], Followed] = {}
    hosts: dict[str, HostPeaks] = {}
    try:
        with path.open("rb") as file:
            if file.read(len(_FORMAT)) != _FORMAT:
                raise ValueError(f"it does not start with {_FORMAT.decode().strip()!r}")
            for part in _parts(file):
                about, arrays = unpack(part)
                if "resource" in about:
                    hosts[str(about["resource"])] = records.host_from(about["is"], arrays)
                else:
                    key = str(about["workload"]), str(about["series"])
                    series[key] = records.series_from(about["is"], arrays)
    except FileNotFoundError:
        return Known()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        raise FileRefused(f"{path}: forecasts restart: {exc!r}") from exc
    return Known(series, hosts)


def publish(folder: Path, forecasts: Forecasts, memory: Mapping[str, MemoryForecast]) -> None:
    """Replace the publications for display and for sizing. Raises OSError if a file cannot be written."""
    for name, value in (
        (PUBLISHED_FILE, forecasts),
        (SUMMARY_FILE, forecasts.summary),
        (MEMORY_FILE, memory),
    ):
        text = json_of(encode(value)).encode()
        _replace(folder / name, lambda file, text=text: file.write(text), sync=False)  # type: ignore[misc]


def read_profile(path: Path) -> UsageProfile:
    """The usage profile in a file.

    Raises:
        FileRefused: the file is missing or is not a usage profile.
    """
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise ValueError(f"it is larger than {MAX_PROFILE_BYTES >> 20} MiB")
        return usage_profile.from_record(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else repr(exc)
        raise FileRefused(
            f"{path}: not a usage profile: {reason}; perphctl usage-profile export writes one"
        ) from exc


def write_profile(path: Path, profile: UsageProfile) -> None:
    """Replace a usage profile. Raises OSError if it cannot be written."""
    text = json_of(usage_profile.as_record(profile)).encode()
    _replace(path, lambda file: file.write(text), sync=True)


def _write_part(file: BinaryIO, part: bytes) -> None:
    file.write(len(part).to_bytes(_LENGTH, "little"))
    file.write(part)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    end = os.fstat(file.fileno()).st_size
    while True:
        size = int.from_bytes(head := file.read(_LENGTH), "little")
        if len(head) < _LENGTH:
            raise ValueError("it is truncated")
        if not size:
            return
        if size > end - file.tell():  # a damaged length; not read, because it may exceed the memory
            raise ValueError("it is truncated")
        yield file.read(size)


def _replace(path: Path, write: Callable[[BinaryIO], object], *, sync: bool) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    with os.fdopen(descriptor, "wb") as file:
        write(file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
