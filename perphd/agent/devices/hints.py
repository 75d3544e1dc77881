"""The environment files in which batch that takes hints finds from which devices it should back off.

    PERPHD_BACK_OFF=disk:8:0,link:eth0              empty: from none
    PERPHD_BACK_OFF_BYTES_S=20000000,1500000        at which it should stay on each of them, in the same order

A hint lasts as long as the workload is restricted on the device, by whatever rung. A workload that is only observed
gets none. Everybody may read the files. A file is replaced as a whole, and removed with its workload or the daemon.
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
"""Their folder, beside the socket."""
NO_HINT: Final = "PERPHD_BACK_OFF=\nPERPHD_BACK_OFF_BYTES_S=\n"


def hints_file(folder: Path, workload: str) -> Path:
    """Where this workload reads."""
    return folder / f"{workload}.env"


class Hints:
    """The files of all workloads that take hints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, str] | None = None

    def write(
        self, takers: Collection[str], enforced: Collection[str], contended: Sequence[ContendedDevice]
    ) -> str:
        """Bring the files up to date; the problem, if one cannot be written.

        ``takers``: the workloads that take hints; ``enforced``: those that get some. ``contended``: the devices that
        batch is backed off from.
        """
        if self._written is None:
            self._written = self._left()
        wanted = {name: _text(name, contended) if name in enforced else NO_HINT for name in takers}
        try:
            for name, text in wanted.items():
                if self._written.get(name) != text:
                    replace_readable(hints_file(self._folder, name), text)
        except OSError as exc:
            return f"{exc.filename}: hints cannot be given: {exc.strerror}"
        for name in self._written.keys() - wanted.keys():
            with contextlib.suppress(OSError):
                os.unlink(hints_file(self._folder, name))
        self._written = wanted
        return ""

    def close(self) -> None:
        """Take all hints back: nobody would end them."""
        self.write((), (), ())

    def _left(self) -> dict[str, str]:
        """Files of a daemon before this one."""
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
