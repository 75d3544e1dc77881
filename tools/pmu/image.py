"""Kernel and root file system of the machine with a PMU: Debian's arm64 kernel, Python, busybox, perphd's wheels.

The root file system is an initramfs, unpacked from Debian packages and never booted before: no package is configured,
and no arm64 program runs on this host. Python is bookworm's for every kernel. Needs root (mmdebstrap) and the Debian
packages of section [pmu] in packaging/apt-packages.txt.
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.vm.making import VmError, boot_modules, kept, kernel_hook, mirror, packed, run, unpacked_kernel

ROOT: Final = Path(__file__).parents[2]
KERNEL: Final = "linux-image-arm64"
USERLAND: Final = "bookworm"
PYTHON: Final = "3.11"
PACKAGES: Final = "busybox-static,libc6,libstdc++6,python3,python3-minimal"
LEFT_OUT: Final = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/lib/apt")
BOOT_MODULES: Final = ("virtio_pci", "9pnet_virtio", "9p")
"""Kernel modules for the shared folder; the console needs none."""
REQUIREMENTS: Final = ROOT / "requirements/runtime.txt"
TOOLS: Final = ("aarch64-linux-gnu-gcc", "cpio", "dpkg-deb", "mmdebstrap", "modprobe", "xz")

# An endless loop without a library, so every instruction is counted.
SPIN: Final = "void _start(void) { volatile unsigned long x = 0; for (;;) x += 3; }\n"

INIT: Final = """#!/bin/busybox sh
b=/bin/busybox
for mounted in "devtmpfs dev /dev" "proc proc /proc" "sysfs sys /sys" "tmpfs tmp /tmp" "tmpfs run /run"; do
  set -- $mounted; $b mount -t $1 $2 $3
done
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/applets HOME=/root
export PYTHONPATH=/opt/src:/usr/local/site
$b --install -s /applets
while read -r module; do $b insmod /modules/$module; done < /modules/order
$b ifconfig lo 127.0.0.1 up
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none lab /lab
$b mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The shared folder is slow, and its bytecode would be left on the host.
$b mkdir -p /opt && $b cp -r /lab/src /opt/src
echo READY
while :; do $b setsid $b sh -c 'exec /bin/busybox sh -i </dev/ttyAMA0 >/dev/ttyAMA0 2>&1'; done
"""


@dataclass(frozen=True, slots=True)
class PmuImage:
    """The kernel that QEMU boots."""

    folder: Path

    @property
    def kernel(self) -> Path:
        """Debian's kernel of the suite."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The root file system."""
        return self.folder / "initrd"


def pmu_image(suite: str, cache: Path) -> PmuImage:
    """The image of this Debian suite, from the cache or created now (about a minute).

    Raises:
        VmError: it cannot be created here.
    """
    recipe = (Path(__file__), REQUIREMENTS)
    return PmuImage(
        kept(cache, suite, suite, recipe, TOOLS, "pmu", lambda work, made: _make(suite, work, made))
    )


def _make(suite: str, work: Path, made: Path) -> None:
    root = work / "root"
    _extract(USERLAND, PACKAGES, root)
    _extract(suite, "busybox-static", work / "unused", f"--extract-hook=sh {kernel_hook(work, KERNEL)}")
    unpacked = unpacked_kernel(work, made)
    for name in LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("modules", "applets", "lab", "proc", "sys", "dev", "run", "tmp", "root", "usr/local/site"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if not (root / "bin/busybox").exists():
        shutil.copy(root / "usr/bin/busybox", root / "bin/busybox")
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    _modules(unpacked, root / "modules")
    _spinner(work, root / "usr/bin/spin")
    _wheels(work, root / "usr/local/site")
    init = root / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    (made / "initrd").write_bytes(gzip.compress(packed(root), 1))


def _extract(suite: str, packages: str, target: Path, *options: str) -> None:
    command = ("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--architectures=arm64")
    run(*command, f"--include={packages}", *options, suite, str(target), mirror())


def _modules(unpacked: Path, target: Path) -> None:
    if not (unpacked / "lib/modules").is_dir():
        (unpacked / "lib").mkdir(exist_ok=True)
        (unpacked / "lib/modules").symlink_to("../usr/lib/modules")
    version = next((unpacked / "lib/modules").iterdir()).name
    run("depmod", "-b", str(unpacked), version, ok=(0, 1))
    files = boot_modules(unpacked, version, BOOT_MODULES)
    for file in files:
        shutil.copy(file, target)
        if file.suffix == ".xz":
            run("xz", "-df", str(target / file.name))
    order = [file.name.removesuffix(".xz") for file in files]
    (target / "order").write_text("".join(f"{name}\n" for name in order))


def _spinner(work: Path, target: Path) -> None:
    source = work / "spin.c"
    source.write_text(SPIN)
    run(
        "aarch64-linux-gnu-gcc",
        "-O1",
        "-static",
        "-nostdlib",
        "-ffreestanding",
        "-o",
        str(target),
        str(source),
    )


def _wheels(work: Path, target: Path) -> None:
    """perphd's run-time dependencies: wheels for arm64, and pure Python packages of this host that have no wheel."""
    entries = REQUIREMENTS.read_text().replace("\\\n", " ").splitlines()
    names = [entry.split("==")[0] for entry in entries if "==" in entry]
    pure = [name for name in names if name == "cgroupspy"]
    kept = work / "requirements.txt"
    kept.write_text("".join(f"{e}\n" for e in entries if "==" in e and e.split("==")[0] not in pure))
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 17)]
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"),
        *("--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes"),
        *(
            "--implementation=cp",
            f"--python-version={PYTHON}",
            *platforms,
            "--platform=manylinux2014_aarch64",
        ),
        *("--target", str(target), "-r", str(kept)),
    )
    for name in pure:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise VmError(f"{name} is not installed here: make .venv/.stamp-dev")
        shutil.copytree(Path(spec.origin).parent, target / name, ignore=shutil.ignore_patterns("__pycache__"))
