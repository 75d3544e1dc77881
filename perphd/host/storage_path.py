"""Finds the storage behind open files and connections: mounts, block devices and peers as layers of an I/O path."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.io_path import Copying, IoUse, Layer, Place, links_write
from perphd.host.fs import KernelFs, read_text, text_or_empty

MOST_PROCESSES: Final = 64
MOST_FILES: Final = 4096
"""Maximum number of descriptors examined over all processes; each takes some 20 us."""
_MOST_DEPTH: Final = 8
USUAL_COPIES: Final = 3
"""Usual replication factor of HDFS, Ceph, Swift and most replicating databases."""

_MEMORY: Final = frozenset(
    "anon_inodefs autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl "
    "hugetlbfs mqueue nsfs proc pstore ramfs rpc_pipefs securityfs selinuxfs sysfs tmpfs tracefs".split()
)
"""File systems without a disk."""
_REMOTE: Final = frozenset(
    "9p afs beegfs cifs gfs2 gpfs lustre nfs nfs4 ocfs2 orangefs smb3 virtiofs fuse.sshfs fuse.davfs".split()
)
_CEPH: Final = frozenset(("ceph", "fuse.ceph", "fuse.ceph-fuse"))
_OBJECT: Final = re.compile(
    r"fuse\.(s3fs|rclone|goofys|geesefs|mount-s3|mountpoint-s3|gcsfuse|blobfuse2?|juicefs|s3ql|svfs)"
)
_NEAR_FUSE: Final = frozenset(
    "fuseblk fuse.mergerfs fuse.bindfs fuse.fuse-overlayfs fuse.encfs fuse.gocryptfs fuse.cryfs fuse.lxcfs".split()
)
_PORTS: Final = {
    8020: "HDFS", 9866: "HDFS", 50010: "HDFS", 9867: "HDFS",
    3300: "Ceph", 6789: "Ceph",
    2049: "NFS", 445: "SMB", 24007: "Gluster",
    10809: "NBD", 3260: "iSCSI", 4420: "NVMe over TCP",
    7480: "Ceph object gateway", 8333: "SeaweedFS", 6200: "Swift", 9000: "MinIO",
}  # fmt: skip
"""Registered or default ports of storage services."""
_WEB: Final = frozenset((80, 443, 8080, 8443))
_CEPH_OSD: Final = range(6800, 7301)
_REPLICATES: Final = {
    "hdfs.server.datanode": ("HDFS", Copying.CHAIN),
    "kafka.Kafka": ("Kafka", Copying.PRIMARY),
    "CassandraDaemon": ("Cassandra", Copying.CLIENT),
    "org.elasticsearch": ("Elasticsearch", Copying.PRIMARY),
    "ceph-osd": ("Ceph", Copying.PRIMARY),
    "minio": ("MinIO", Copying.PRIMARY),
    "swift-object-server": ("Swift", Copying.PRIMARY),
    "cockroach": ("CockroachDB", Copying.PRIMARY),
    "etcd": ("etcd", Copying.PRIMARY),
    "mongod": ("MongoDB", Copying.PRIMARY),
}
"""Programs that replicate data themselves, by a word of their command line."""
_ESTABLISHED: Final = "01"


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A line of mountinfo: proc(5)."""

    device: str
    point: str
    fstype: str
    source: str
    options: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """``layers`` of a path, nearest first. ``on``: the storage in a few words. ``note``: parts that are invisible from
    this host.
    """

    layers: tuple[Layer, ...]
    on: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class StorageSurvey:
    """Storage found behind processes.

    ``skipped``: processes and descriptors that are gone or exceed the limits. ``sockets``: inodes of
    connections to storage.
    """

    uses: tuple[IoUse, ...]
    skipped: int
    sockets: frozenset[str]


def parse_mounts(text: str) -> dict[str, MountPoint]:
    """Mounts by their id."""
    found = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        first, last = left.split(), right.split()
        if len(first) >= 6 and len(last) >= 2:
            options = last[2] if len(last) > 2 else ""
            found[first[0]] = MountPoint(
                first[2], _plain(first[4]), last[0], _plain(last[1]), _plain(options)
            )
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


class Devices:
    """Resolves mounts and block devices through the host's mount table and /sys/dev/block."""

    def __init__(self, fs: KernelFs, readlink: Callable[[str], str], mounts: Iterable[MountPoint]) -> None:
        self._fs, self._readlink = fs, readlink
        self._mounts = sorted(mounts, key=lambda mount: len(mount.point), reverse=True)

    def of_mount(self, mount: MountPoint, depth: int = 0) -> Resolved | None:
        """The layers below a mount; None for file systems without a disk."""
        kind = mount.fstype
        if kind in _MEMORY or depth > _MOST_DEPTH:
            return None
        if kind in _CEPH:
            layer = Layer("CephFS", Place.REMOTE_FS, USUAL_COPIES, remote=True, assumed=True)
            return Resolved((layer,), f"{kind} from {mount.source}")
        if kind in ("fuse.glusterfs", "glusterfs"):
            layer = Layer(
                "Gluster", Place.REMOTE_FS, USUAL_COPIES, remote=True, copying=Copying.CLIENT, assumed=True
            )
            return Resolved((layer,), f"{kind} from {mount.source}")
        if kind in _REMOTE:
            note = "how the server stores the data is not visible on this host"
            return Resolved((Layer(kind, Place.REMOTE_FS, remote=True),), f"{kind} from {mount.source}", note)
        if _OBJECT.fullmatch(kind):
            layer = Layer(kind, Place.OBJECT, USUAL_COPIES, remote=True, gateway=True, assumed=True)
            return Resolved((layer,), f"{kind} from {mount.source}")
        if kind == "overlay":
            return self._overlay(mount, depth)
        if kind in _NEAR_FUSE and not mount.source.startswith("/dev/"):
            note = "the storage below this file system is not visible on this host"
            return Resolved((Layer(kind, Place.LOCAL),), f"{kind} from {mount.source}", note)
        if kind.startswith("fuse") and kind != "fuseblk":
            note = "a user-space file system: assumed to be remote, since its storage is not visible on this host"
            return Resolved((Layer(kind, Place.REMOTE_FS, remote=True),), f"{kind} from {mount.source}", note)
        number = mount.device
        if number.startswith(
            "0:"
        ):  # btrfs and similar file systems use anonymous device numbers; the mount's source names the device
            number = self._number(mount.source)
        found = self.of_block(number, depth + 1) if number else None
        if found is None:
            note = f"its device {mount.source} cannot be resolved"
            return Resolved((Layer(kind, Place.LOCAL),), f"{kind} on {mount.source}", note)
        return Resolved(found.layers, f"{kind} on {found.on}", found.note)

    def of_path(self, path: str, depth: int = 0) -> Resolved | None:
        """The layers below a path of the host's own mount namespace."""
        for mount in self._mounts:
            point = mount.point.rstrip("/")
            if path == mount.point or path.startswith(f"{point}/"):
                return self.of_mount(mount, depth + 1)
        return None

    def of_block(self, number: str, depth: int = 0) -> Resolved | None:
        """The layers of a block device by MAJOR:MINOR; None if there is no such device."""
        if depth > _MOST_DEPTH:
            return None
        base = f"/sys/dev/block/{number}"
        if not self._fs.exists(base):
            return None
        if self._fs.exists(f"{base}/partition"):
            base = f"{base}/.."
        name = self._field(f"{base}/uevent", "DEVNAME") or number
        if name.startswith("rbd"):
            return Resolved((Layer("Ceph RBD", Place.VOLUME, USUAL_COPIES, remote=True, assumed=True),), name)
        if name.startswith("nbd"):
            note = "how the server stores the data is not visible on this host"
            return Resolved((Layer("NBD", Place.VOLUME, remote=True),), name, note)
        if name.startswith("drbd"):
            return Resolved((Layer("DRBD", Place.VOLUME, 2, assumed=True), Layer("disk", Place.LOCAL)), name)
        if name.startswith("loop"):
            backing = self._text(f"{base}/loop/backing_file")
            below = self.of_path(backing, depth + 1) if backing else None
            return Resolved(below.layers, f"{name} on {below.on}", below.note) if below else _disk(name)
        if name.startswith("md"):
            return self._raid(base, name, depth)
        slaves = self._slaves(base, depth)
        if slaves:
            farthest = max(slaves, key=lambda each: links_write(each.layers))
            return Resolved(farthest.layers, f"{name} on {farthest.on}", farthest.note)
        return self._plain_disk(base, name)

    def _raid(self, base: str, name: str, depth: int) -> Resolved:
        level = self._text(f"{base}/md/level") or "raid"
        members = self._slaves(base, depth)
        copies = max(1, len(members)) if level == "raid1" else 2 if level == "raid10" else 1
        layer = Layer(
            f"md {level}", Place.VOLUME if copies > 1 else Place.LOCAL, copies, copying=Copying.CLIENT
        )
        below = max(members, key=lambda each: links_write(each.layers), default=_disk("its disks"))
        return Resolved((layer, *below.layers), f"{name} ({level}) on {below.on}", below.note)

    def _plain_disk(self, base: str, name: str) -> Resolved:
        transports = {self._text(f"{base}/device/transport")}
        if name.startswith("nvme"):
            transports |= {
                self._text(f"{base}/device/{each}/transport")
                for each in self._names(f"{base}/device")
                if each.startswith("nvme")
            }
        fabric = next((each for each in sorted(transports) if each in ("tcp", "rdma", "fc", "loop")), "")
        if fabric:
            return Resolved((Layer(f"NVMe over {fabric}", Place.VOLUME, remote=True),), name)
        try:
            path = self._readlink(f"{base}/device") + self._readlink(f"/sys/block/{name}")
        except OSError:
            path = ""
        if re.search(r"/session\d+/", path):
            return Resolved((Layer("iSCSI", Place.VOLUME, remote=True),), name)
        if "/rport-" in path:
            return Resolved((Layer("Fibre Channel", Place.VOLUME, remote=True),), name)
        if re.match(r"vd[a-z]|xvd[a-z]", name):
            return Resolved(
                (Layer("virtual disk", Place.LOCAL),), name, "the hypervisor's storage is not visible"
            )
        return _disk(name)

    def _overlay(self, mount: MountPoint, depth: int) -> Resolved | None:
        for key in ("upperdir", "lowerdir"):
            if match := re.search(rf"(?:^|,){key}=([^,:]+)", mount.options):
                below = self.of_path(match[1], depth + 1)
                if below is not None:
                    return Resolved(below.layers, f"overlay on {below.on}", below.note)
        return Resolved((Layer("overlay", Place.LOCAL),), "overlay", "its underlying folders are not visible")

    def _slaves(self, base: str, depth: int) -> list[Resolved]:
        found = []
        for name in self._names(f"{base}/slaves"):
            number = self._text(f"{base}/slaves/{name}/dev")
            below = self.of_block(number, depth + 1) if number else None
            if below is not None:
                found.append(below)
        return found

    def _number(self, source: str) -> str:
        return (
            self._text(f"/sys/class/block/{source.rpartition('/')[2]}/dev")
            if source.startswith("/dev/")
            else ""
        )

    def _names(self, path: str) -> list[str]:
        try:
            return self._fs.listdir(path)
        except KernelError:
            return []

    def _text(self, path: str) -> str:
        return text_or_empty(self._fs, path).strip()

    def _field(self, path: str, key: str) -> str:
        return next(
            (line.partition("=")[2] for line in self._text(path).splitlines() if line.startswith(f"{key}=")),
            "",
        )


def _disk(name: str) -> Resolved:
    return Resolved((Layer("disk", Place.LOCAL),), name)


def of_peer(address: str, port: int) -> Resolved | None:
    """The layers behind a connection to this port; None if the port belongs to no storage service."""
    here = ip_address(address).is_loopback
    if port in _WEB:
        return None
    name = _PORTS.get(port) or ("Ceph" if port in _CEPH_OSD else "")
    match name:
        case "":
            return None
        case "HDFS":
            layer = Layer(name, Place.REMOTE_FS, USUAL_COPIES, not here, copying=Copying.CHAIN, assumed=True)
        case "Ceph":
            layer = Layer(name, Place.VOLUME, USUAL_COPIES, True, assumed=True)
        case "NBD" | "iSCSI" | "NVMe over TCP":
            layer = Layer(name, Place.VOLUME, remote=not here)
        case "NFS" | "SMB" | "Gluster":
            layer = Layer(name, Place.REMOTE_FS, remote=not here)
        case _:
            layer = Layer(name, Place.OBJECT, USUAL_COPIES, remote=True, gateway=True, assumed=True)
    return Resolved((layer,), name, "identified by its port" + (", on this host" if here else ""))


def own_layer(argv: str) -> Layer | None:
    """The layer of a program that replicates data to its peers, by its command line; None if it does not."""
    for word, (name, copying) in _REPLICATES.items():
        program = argv.split("\0", 1)[0].rpartition("/")[2]
        if (word == program) if word.islower() and "." not in word else (word in argv):
            return Layer(name, Place.LOCAL, USUAL_COPIES, copying=copying, assumed=True)
    return None


def parse_connections(text: str) -> dict[str, tuple[str, int]]:
    """Parse /proc/net/tcp or tcp6: address and port of established connections' peers, by socket inode."""
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 10 and words[3] == _ESTABLISHED:
            address, _, port = words[2].rpartition(":")
            found[words[9]] = (_address(address), int(port, 16))
    return found


def _address(text: str) -> str:
    raw = bytes.fromhex(text)
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    address = ip_address(struct.pack(f">{len(words)}I", *words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def look(fs: KernelFs, readlink: Callable[[str], str], pids: Sequence[int]) -> StorageSurvey:
    """The storage behind the open files and connections of these processes.

    Args:
        fs: the host.
        readlink: reads a symbolic link of that host.
        pids: at most ``MOST_PROCESSES`` of them, and ``MOST_FILES`` descriptors, are examined.
    """
    finder = _Finder(fs, readlink)
    chosen = sorted(pids)[:MOST_PROCESSES]
    for pid in chosen:
        finder.process(pid)
    return StorageSurvey(finder.uses(), finder.skipped + len(pids) - len(chosen), frozenset(finder.sockets))


class _Finder:
    def __init__(self, fs: KernelFs, readlink: Callable[[str], str]) -> None:
        self._fs, self._readlink = fs, readlink
        self.skipped, self._looked = 0, 0
        self.sockets: set[str] = set()
        self._devices: Devices | None = None
        self._resolved: dict[tuple[str, str], Resolved | None] = {}
        self._found: dict[tuple[str, str], IoUse] = {}
        self._peers: dict[str, dict[str, tuple[str, int]]] = {}

    def uses(self) -> tuple[IoUse, ...]:
        """All storage in use, the farthest first."""
        return tuple(sorted(self._found.values(), key=lambda use: (-use.links[1], -use.links[0], use.what)))

    def process(self, pid: int) -> None:
        base = f"/proc/{pid}"
        try:
            names = self._fs.listdir(f"{base}/fd")
            mounts = parse_mounts(read_text(self._fs, f"{base}/mountinfo"))
            argv = self._fs.read(f"{base}/cmdline").decode(errors="replace")
        except KernelError:
            self.skipped += 1
            return
        if self._devices is None:
            self._devices = Devices(self._fs, self._readlink, self._host_mounts() or mounts.values())
        own = own_layer(argv)
        for name in names:
            if self._looked >= MOST_FILES:
                self.skipped += 1
                continue
            self._looked += 1
            try:
                target = self._readlink(f"{base}/fd/{name}")
                if target.startswith("socket:["):
                    self._socket(base, target[8:-1])
                elif target.startswith("/"):
                    self._file(mounts, read_text(self._fs, f"{base}/fdinfo/{name}"), target, own)
            except (KernelError, OSError, ValueError):
                self.skipped += 1

    def _host_mounts(self) -> Iterable[MountPoint]:
        try:
            return parse_mounts(read_text(self._fs, "/proc/1/mountinfo")).values()
        except KernelError:
            return ()

    def _file(self, mounts: dict[str, MountPoint], info: str, target: str, own: Layer | None) -> None:
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        mount = mounts.get(fields.get("mnt_id", "").strip())
        if mount is None or self._devices is None or target.startswith("/dev/"):
            return
        key = (mount.device, mount.point)
        if key not in self._resolved:
            self._resolved[key] = self._devices.of_mount(mount)
        found = self._resolved[key]
        if found is None:
            return
        layers = found.layers if own is None else (own, *found.layers)
        self._count(IoUse(f"{mount.point} ({found.on})", layers, 1, example=target, note=found.note))

    def _socket(self, base: str, inode: str) -> None:
        try:
            space = self._readlink(f"{base}/ns/net")
        except OSError:
            space = base
        if space not in self._peers:
            self._peers[space] = self._connections(base)
        peer = self._peers[space].get(inode)
        found = of_peer(*peer) if peer is not None else None
        if peer is None or found is None:
            return
        self.sockets.add(inode)
        address = f"{peer[0]}:{peer[1]}"
        self._count(IoUse(f"{found.on} at {address}", found.layers, 1, peer=address, note=found.note))

    def _connections(self, base: str) -> dict[str, tuple[str, int]]:
        peers: dict[str, tuple[str, int]] = {}
        for name in ("tcp", "tcp6"):
            with suppress(KernelError):
                peers |= parse_connections(read_text(self._fs, f"{base}/net/{name}"))
        return peers

    def _count(self, use: IoUse) -> None:
        key = (use.what, ",".join(layer.name for layer in use.layers))
        before = self._found.get(key)
        if before is not None:
            use = IoUse(use.what, use.layers, before.count + 1, before.example, use.peer, use.note)
        self._found[key] = use
