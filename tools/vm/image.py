"""The disk of a virtual machine: a small Debian with systemd, cgroup v2, Python and an ssh server, created once and
cached.

Needs root (the files inside belong to root) and the Debian packages of section [vm] in packaging/apt-packages.txt.
The kernel is unpacked, not installed: installing it would build an initramfs of its own, which boots slowly without
KVM. A few modules and busybox lead to the root file system instead.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.vm.making import boot_modules, kept, kernel_hook, mirror, packed, run, unpacked_kernel

PACKAGES = (
    "bpftool,busybox-static,ca-certificates,dbus,iproute2,kmod,less,libpam-systemd,openssh-server,procps,psmisc,python3,"
    "sudo,systemd-sysv,udev,util-linux"
)
LIBRARIES = (
    "python3-aiohttp,python3-click,python3-dbus-fast,python3-numpy,python3-pg8000,python3-prometheus-client,python3-psutil,"
    "python3-pymysql,python3-pyroute2,python3-redis,python3-rich,python3-systemd"
)
"""Packages that perphd's package depends on; the machine has no network to install them."""
KERNEL = "linux-image-cloud-amd64"
TOOLS = ("mmdebstrap", "mke2fs", "modprobe", "cpio", "ssh-keygen")
FREE_MB = 1200
LEFT_OUT = ("locale", "info", "doc-base")
# Kernel modules in load order; dependencies are added before each module.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
# Masked units, so that no service accesses the network, other disks or the clock during tests.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "systemd-networkd-wait-online.service",
    "systemd-timesyncd.service",
    "systemd-pstore.service",
)
# Generators without work here. Each of them is a process at every daemon-reload, which takes seconds on emulated
# processors.
IDLE_GENERATORS = (
    "systemd-bless-boot-generator",
    "systemd-cryptsetup-generator",
    "systemd-debug-generator",
    "systemd-factory-reset-generator",
    "systemd-gpt-auto-generator",
    "systemd-hibernate-resume-generator",
    "systemd-import-generator",
    "systemd-integritysetup-generator",
    "systemd-rc-local-generator",
    "systemd-run-generator",
    "systemd-ssh-generator",
    "systemd-system-update-generator",
    "systemd-sysv-generator",
    "systemd-tpm2-generator",
    "systemd-veritysetup-generator",
)


@dataclass(frozen=True, slots=True)
class Image:
    """A finished disk with its boot files. ``folder`` contains root.img, vmlinuz, initrd and the ssh key."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The root file system, which is never written to, because machines run on overlays."""
        return self.folder / "root.img"

    @property
    def kernel(self) -> Path:
        """The kernel that QEMU boots."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initial RAM disk that mounts the root file system."""
        return self.folder / "initrd"

    @property
    def key(self) -> Path:
        """The private ssh key of root."""
        return self.folder / "key"


def image(suite: str, cache: Path, extra: str = "") -> Image:
    """The image of this Debian suite, from the cache or created now (about a minute).

    ``extra``: an additional Debian package, such as a server that a test needs.

    Raises:
        VmError: it cannot be created here.
    """
    label = f"{suite}+{extra}" if extra else suite
    recipe = (Path(__file__),)
    return Image(
        kept(cache, label, suite, recipe, TOOLS, "vm", lambda work, made: _make(suite, work, made, extra))
    )


def _make(suite: str, work: Path, made: Path, extra: str) -> None:
    root = work / "root"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made / "key"))
    _bootstrap(suite, work, root, extra)
    version = _unpack_kernel(work, root, made)
    _settings(root, made)
    _initrd(work, root, version, made / "initrd")
    size_mb = int(run("du", "-sm", str(root)).split()[0]) + FREE_MB
    run("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-d", str(root), str(made / "root.img"), f"{size_mb}M")


def _bootstrap(suite: str, work: Path, root: Path, extra: str) -> None:
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    run(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        f"--include={PACKAGES},{LIBRARIES}{',' if extra else ''}{extra}",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=APT::Install-Recommends "false"',
        *excluded,
        f"--customize-hook=sh {kernel_hook(work, KERNEL)}",
        suite,
        str(root),
        mirror(),
    )


def _unpack_kernel(work: Path, root: Path, made: Path) -> str:
    unpacked = unpacked_kernel(work, made)
    modules = next(iter([*unpacked.glob("usr/lib/modules/*"), *unpacked.glob("lib/modules/*")]))
    # These files are unused and take most of the space.
    for unused in ("drivers/net/ethernet", "drivers/gpu", "drivers/scsi", "drivers/infiniband", "sound"):
        shutil.rmtree(modules / "kernel" / unused, ignore_errors=True)
    (root / "lib/modules").mkdir(exist_ok=True)
    shutil.copytree(modules, root / "lib/modules" / modules.name, symlinks=True)
    run("depmod", "-b", str(root), modules.name)
    return modules.name


def _settings(root: Path, made: Path) -> None:
    files = {
        "etc/hostname": "perphd-vm\n",
        "etc/hosts": "127.0.0.1 localhost perphd-vm\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "etc/fstab": "/dev/vda / ext4 rw,noatime 0 0\n",
        "etc/ssh/sshd_config.d/vm.conf": "PermitRootLogin prohibit-password\nUseDNS no\nMaxSessions 50\n",
        "etc/systemd/network/vm.network": "[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
        "etc/dpkg/dpkg.cfg.d/vm": "force-unsafe-io\n",
        # Long time-outs, because emulated processors are slow.
        "etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStartSec=300s\n"
        "DefaultDeviceTimeoutSec=120s\n",
        "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(made / "key.pub", root / "root/.ssh/authorized_keys")
    units = root / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "systemd-networkd.service").symlink_to("/lib/systemd/system/systemd-networkd.service")
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    generators = root / "etc/systemd/system-generators"
    generators.mkdir(parents=True, exist_ok=True)
    for name in IDLE_GENERATORS:
        (generators / name).symlink_to("/dev/null")


def _initrd(work: Path, root: Path, version: str, result: Path) -> None:
    tree = work / "initrd"
    for name in ("bin", "dev", "proc", "root", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    files = boot_modules(root, version, BOOT_MODULES)
    for file in files:
        shutil.copy(file, tree / "modules")
    init = tree / "init"
    init.write_text(
        "#!/bin/busybox sh\n"
        "export PATH=/bin; b=/bin/busybox\n"
        "$b mount -t devtmpfs dev /dev\n"
        f"for name in {' '.join(file.name for file in files)}; do\n"
        "  case $name in\n"
        "  *.xz) $b xzcat /modules/$name > /module.ko; $b insmod /module.ko ;;\n"
        "  *) $b insmod /modules/$name ;;\n"
        "  esac\n"
        "done\n"
        "tries=0\n"
        "while [ ! -b /dev/vda ] && [ $tries -lt 500 ]; do $b usleep 20000; tries=$((tries + 1)); done\n"
        "$b mount -t ext4 -o rw,noatime /dev/vda /root || exec $b sh\n"
        "$b mount --move /dev /root/dev\n"
        "exec $b switch_root /root /sbin/init\n"
    )
    init.chmod(0o755)
    result.write_bytes(packed(tree))
