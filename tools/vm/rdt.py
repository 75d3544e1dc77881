"""A QEMU whose processors have Intel RDT: cache allocation, bandwidth allocation and monitoring.

No released QEMU supports it. ``PERPHD_QEMU_RDT`` names one that does: the program, the program packed by zstd, or a
folder with ``qemu-rdt.zst`` or ``qemu-system-x86_64`` in it (tests/rdt/README.md lists the requirements).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.vm.machine import Emulator
from tools.vm.making import VmError

VARIABLE: Final = "PERPHD_QEMU_RDT"
PROCESSOR: Final = "Icelake-Server,check=off,+cqm,+rdt-a"
"""Not Skylake or Cascade Lake, for which Linux disables cache allocation because of an erratum."""
_FIRMWARE: Final = ("/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu")
_NAMES: Final = ("qemu-rdt.zst", "qemu-system-x86_64", "qemu-bin")


def rdt_emulator(cache: Path) -> Emulator:
    """The QEMU that ``PERPHD_QEMU_RDT`` names, unpacked into ``cache`` if it is packed.

    Raises:
        VmError: the variable is not set, or names no such program.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        raise VmError(
            f"{VARIABLE} is not set: it names a QEMU with Intel RDT, built from Debian's source of QEMU with the "
            "model that tests/rdt/README.md describes"
        )
    path = Path(named).resolve()
    if path.is_dir():
        found = [path / name for name in _NAMES if (path / name).is_file()]
        if not found:
            raise VmError(f"{VARIABLE}={named}: contains none of {', '.join(_NAMES)}")
        path = found[0]
    if not path.is_file():
        raise VmError(f"{VARIABLE}={named}: there is no such file")
    if path.suffix == ".zst":
        path = _unpacked(path, cache)
    command = [str(path)]
    for folder in _FIRMWARE:
        command += ["-L", folder]
    told = subprocess.run([*command, "-cpu", "help"], capture_output=True, text=True, check=False)
    if told.returncode:
        raise VmError(f"{path} does not run here: {told.stderr.strip()[-300:]}")
    return Emulator(tuple(command), PROCESSOR, kvm=False)


def _unpacked(packed: Path, cache: Path) -> Path:
    with packed.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    program = cache / f"qemu-rdt-{name}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        making = program.with_suffix(".part")
        done = subprocess.run(
            ["zstd", "-dqf", str(packed), "-o", str(making)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise VmError(f"{packed} cannot be unpacked: {done.stderr.strip()[-300:]}")
        making.chmod(0o755)
        making.rename(program)
    return program


if __name__ == "__main__":
    try:
        print(rdt_emulator(Path(sys.argv[1]).resolve()).command[0])
    except VmError as exc:
        sys.exit(f"test-rdt: {exc}")
