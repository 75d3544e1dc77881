"""Writes environment files that tell batch from which devices to back off.

    PERPHD_BACK_OFF=disk:8:0,link:eth0              empty: none
    PERPHD_BACK_OFF_BYTES_S=20000000,1500000        requested limit on each of them in bytes/s, in the same order

A hint lasts while the workload is restricted on the device, on any rung. A workload that is only observed
gets no hint. The files are world-readable. A file is replaced atomically, and removed with its workload or
the daemon.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from perphd.domain.contention import ContendedDevice
from perphd.host.state_files import replace_readable

HINTS: Final = "hints"
"""Folder of the hint files, beside the socket."""
NO_HINT: Final = "PERPHD_BACK_OFF=\nPERPHD_BACK_OFF_BYTES_S=\n"


def hints_file(folder: Path, workload: str) -> Path:
    """The hint file of this workload."""
    return folder / f"{workload}.env"


class Hints:
    """The hint files of all workloads that read hints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] | None = None

    def write(
        self, takers: Collection[str], enforced: Collection[str], contended: Sequence[ContendedDevice]
    ) -> str:
        """Update the files. Returns the problem if a file cannot be written, else an empty text.

        ``takers``: workloads that read hints; ``enforced``: those that may get one; ``contended``: the
        devices from which batch is being backed off.
        """
        if self._written is None:
            self._written = self._left()
        wanted = {name: _text(name, contended) if name in enforced else NO_HINT for name in takers}
        try:
            for name, text in wanted.items():
                if self._written.get(name) != text:
                    replace_readable(hints_file(self._folder, name), text)
        except OSError as exc:
            return f"{exc.filename}: the hint cannot be written: {exc.strerror}"
        for name in self._written.keys() - wanted.keys():
            with contextlib.suppress(OSError):
                os.unlink(hints_file(self._folder, name))
        self._written = wanted
        return ""

    def close(self) -> None:
        """Remove all hints, because nothing would end them later."""
        self.write((), (), ())

    def _left(self) -> dict[str, str]:
        """Names of the workloads for which an earlier daemon left hint files."""
        try:
            return {path.name.removesuffix(".env"): "" for path in self._folder.glob("*.env")}
        except OSError:
            return {}


def _text(name: str, contended: Sequence[ContendedDevice]) -> str:
    found = [
        (f"{device.kind}:{device.device}", f"{share.limit_bytes_s:.0f}")
        for device in contended
        for share in device.restrictions
        if share.workload == name
    ]
    if not found:
        return NO_HINT
    devices, limits = (",".join(each) for each in zip(*found, strict=True))
    return f"PERPHD_BACK_OFF={devices}\nPERPHD_BACK_OFF_BYTES_S={limits}\n"
