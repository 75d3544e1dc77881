"""Creation and caching of machine images, shared by all kinds of images."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

SUITES: Final = ("bookworm", "trixie")
"""Debian releases with a recipe: Linux 6.1 and 6.12."""


class VmError(Exception):
    """The virtual machine is unavailable; the text gives the reason and the remedy."""


def kept(
    cache: Path,
    label: str,
    suite: str,
    recipe: Sequence[Path],
    tools: Sequence[str],
    section: str,
    make: Callable[[Path, Path], None],
) -> Path:
    """The image's folder, from the cache or created now (about a minute).

    ``label``: of its folder; ``recipe``: files that define the image, which is created again when their text changes;
    ``tools``: programs that the creation needs, from this ``section`` of packaging/apt-packages.txt; ``make``: fills
    its second folder, and may use its first one.

    Raises:
        VmError: it cannot be made here.
    """
    name = hashlib.sha256(b"".join(path.read_bytes() for path in (*recipe, Path(__file__)))).hexdigest()[:12]
    folder = cache / f"{label}-{name}"
    if folder.is_dir():
        return folder
    if suite not in SUITES:
        raise VmError(f"no recipe for Debian {suite!r}; there is one for {', '.join(SUITES)}")
    if os.geteuid() != 0:
        raise VmError("creating the image needs root: mmdebstrap unpacks packages as root")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise VmError(f"creating the image needs {', '.join(missing)}: packaging/apt-install {section}")
    for old in cache.glob(f"{label}-*"):
        shutil.rmtree(old)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".making-") as work:
        Path(work).chmod(0o755)
        made = Path(work, "image")
        made.mkdir()
        make(Path(work), made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has created it meanwhile
                raise
    return folder


def kernel_hook(work: Path, package: str) -> Path:
    """A hook of mmdebstrap that downloads the kernel to which ``package`` refers."""
    hook = work / "hook"
    hook.write_text(
        "set -e\n"
        f"cd {work}\n"
        'export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"\n'
        f"name=$(apt-cache depends {package} | awk '/Depends: linux-image/{{print $2; exit}}')\n"
        f"apt-get -qq -o APT::Sandbox::User=root download ${{name:-{package}}}\n"
    )
    return hook


def unpacked_kernel(work: Path, made: Path) -> Path:
    """Unpack the kernel that the hook has downloaded, put it beside the image, and return the folder of its files."""
    packages = list(work.glob("linux-image-*.deb"))
    if len(packages) != 1:
        raise VmError(f"the kernel's package was not downloaded: {packages}")
    unpacked = work / "kernel"
    run("dpkg-deb", "-x", str(packages[0]), str(unpacked))
    shutil.copy(next(unpacked.glob("boot/vmlinuz-*")), made / "vmlinuz")
    return unpacked


def boot_modules(root: Path, version: str, names: Sequence[str]) -> list[Path]:
    """The files of these modules below ``root``, each after its dependencies."""
    files: dict[str, Path] = {}
    for line in run("modprobe", "-d", str(root), "-S", version, "-aD", *names, ok=(0, 1)).splitlines():
        word, _, path = line.partition(" ")
        if word == "insmod":
            file = Path(path.split()[0])
            files.setdefault(file.name, file)
    return list(files.values())


def packed(tree: Path) -> bytes:
    """This tree as an initramfs."""
    done = subprocess.run(
        "find . | cpio -o -H newc -R 0:0 --quiet", shell=True, cwd=tree, capture_output=True, check=True
    )
    return done.stdout


def mirror() -> str:
    """The Debian mirror of this machine's apt."""
    if shutil.which("apt-get") is None:
        return "http://deb.debian.org/debian"
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)").splitlines()
    fit = [line.split()[0] for line in listed if line.endswith(" Debian") and "security" not in line]
    return fit[0] if fit else "http://deb.debian.org/debian"


def run(*command: str, ok: tuple[int, ...] = (0,)) -> str:
    """The output of this command.

    Raises:
        VmError: it ended with a status that is not in ``ok``.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in ok:
        said = done.stderr.strip()[-2000:]
        raise VmError(f"{' '.join(command[:3])} ... ended with {done.returncode}:\n{said}")
    return done.stdout
