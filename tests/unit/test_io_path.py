"""Links of storage paths, what stands behind files and connections, and where the threads' time goes."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from perphd.commands.cli import cli
from perphd.domain.io_path import Copying, IoUse, Layer, Place, farthest, flaws, links_read, links_write
from perphd.host.fs import RealFs
from perphd.host.io_wait import split
from perphd.host.storage_path import (
    MOST_PROCESSES,
    Devices,
    look,
    of_peer,
    own_layer,
    parse_connections,
    parse_mounts,
)

DISK = Layer("disk", Place.LOCAL)
HDFS = Layer("HDFS", Place.LOCAL, 3, copying=Copying.CHAIN)
REMOTE_HDFS = Layer("HDFS", Place.REMOTE_FS, 3, remote=True, copying=Copying.CHAIN)
CEPH = Layer("Ceph", Place.VOLUME, 3, remote=True)
SWIFT = Layer("Swift", Place.OBJECT, 3, remote=True, gateway=True)
ONCE = Layer("HDFS", Place.LOCAL, 1, copying=Copying.CHAIN)


def test_links_of_the_published_scenarios():
    """GC, GC-V, NC and SWI of Pace 2018, table 5.2: reads 0, 2, 2, 4."""
    assert [
        links_read(path) for path in ((HDFS, DISK), (ONCE, CEPH), (REMOTE_HDFS, DISK), (SWIFT, DISK))
    ] == [0, 2, 2, 4]
    # GC, NC, GC-Vs, SWI, GC-Vb: writes 3, 4, 4, 4, 15.
    paths = ((HDFS, DISK), (REMOTE_HDFS, DISK), (ONCE, CEPH), (SWIFT, DISK), (HDFS, CEPH))
    assert [links_write(path) for path in paths] == [3, 4, 4, 4, 15]
    assert links_read((HDFS, CEPH)) == 2


@pytest.mark.parametrize(
    ("layers", "read", "write"),
    [
        ((DISK,), 0, 0),
        ((Layer("NBD", Place.VOLUME, remote=True),), 2, 2),
        ((Layer("DRBD", Place.VOLUME, 2), DISK), 0, 2),
        ((Layer("md raid1", Place.VOLUME, 2, copying=Copying.CLIENT), DISK), 0, 0),
        (
            (
                Layer("md raid1", Place.VOLUME, 2, copying=Copying.CLIENT),
                Layer("NBD", Place.VOLUME, remote=True),
            ),
            2,
            4,
        ),
        ((Layer("Gluster", Place.REMOTE_FS, 3, remote=True, copying=Copying.CLIENT),), 2, 2),
    ],
)
def test_links_of_other_systems(layers: tuple[Layer, ...], read: int, write: int):
    assert (links_read(layers), links_write(layers)) == (read, write)


layers_ = st.builds(
    Layer,
    st.just("x"),
    st.sampled_from(Place),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from(Copying),
)


@given(st.lists(layers_, max_size=4), layers_)
def test_another_layer_never_shortens_a_path(path: list[Layer], more: Layer):
    assert links_read([more, *path]) >= links_read(path)
    assert links_write([more, *path]) >= links_write(path)
    assert links_write([*path, more]) >= links_write(path)


def use(*layers: Layer, peer: str = "", count: int = 1) -> IoUse:
    return IoUse("/data", layers, count, peer=peer)


def test_flaws():
    assert flaws([use(HDFS, DISK), use(ONCE, CEPH), use(DISK)]) == ()
    (twice,) = flaws([use(HDFS, CEPH)])
    assert twice == "/data: HDFS and Ceph both replicate: a write crosses 15 links, 4 if only one of them did"
    raid = Layer("md raid1", Place.VOLUME, 2, copying=Copying.CLIENT)
    assert flaws([use(HDFS, raid, DISK)]) == (), "a mirror of local disks crosses no link"
    (proxy,) = flaws([use(SWIFT, peer="10.0.0.1:8080", count=2), use(SWIFT, peer="10.0.0.1:8081")])
    assert (
        proxy == "all 3 connections to the object store end at one host, 10.0.0.1: its link bounds them all"
    )
    assert flaws([use(SWIFT, peer="10.0.0.1:80"), use(SWIFT, peer="10.0.0.2:80")]) == ()
    assert flaws([use(SWIFT, peer="10.0.0.1:80")]) == ()
    assert farthest([use(DISK), use(SWIFT), use(HDFS, CEPH)]) == use(HDFS, CEPH)
    assert farthest([]) is None


# --- a host as files ------------------------------------------------------------------------------------------------


class Tree:
    """/proc and /sys of an imagined host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fs = RealFs(root)

    def write(self, path: str, text: str = "") -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, path: str, target: str) -> None:
        made = self.root / path.lstrip("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.symlink_to(target)

    def readlink(self, path: str) -> str:
        return os.readlink(f"{self.root}{path}")

    def block(self, name: str, number: str, slaves: tuple[str, ...] = (), **files: str) -> None:
        base = f"/sys/devices/x/{name}"
        self.write(f"{base}/uevent", f"MAJOR={number.partition(':')[0]}\nDEVNAME={name}\n")
        self.write(f"{base}/dev", f"{number}\n")
        for key, text in files.items():
            self.write(f"{base}/{key.replace('__', '/')}", f"{text}\n")
        (self.root / base.lstrip("/") / "slaves").mkdir(exist_ok=True)
        for slave in slaves:
            self.link(f"{base}/slaves/{slave}", f"../../{slave}")
        self.link(f"/sys/dev/block/{number}", f"../../devices/x/{name}")
        self.link(f"/sys/class/block/{name}", f"../../devices/x/{name}")

    def process(self, pid: int, mounts: str, argv: str = "db", **fds: tuple[str, str]) -> None:
        self.write(f"/proc/{pid}/mountinfo", mounts)
        self.write(f"/proc/{pid}/cmdline", argv.replace(" ", "\0"))
        (self.root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
        self.link(f"/proc/{pid}/ns/net", "net:[1]")
        for number, (target, mount) in fds.items():
            self.link(f"/proc/{pid}/fd/{number.lstrip('n')}", target)
            self.write(f"/proc/{pid}/fdinfo/{number.lstrip('n')}", f"pos:\t0\nflags:\t02\nmnt_id:\t{mount}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.block("sda", "8:0")
    made.write("/sys/devices/x/sda/sda1/partition", "1\n")
    made.link("/sys/dev/block/8:1", "../../devices/x/sda/sda1")
    made.block("rbd0", "250:0")
    made.block("nbd0", "43:0")
    made.block("drbd0", "147:0")
    made.block("md0", "9:0", ("sda", "nbd0"), md__level="raid1")
    made.block("dm-0", "253:0", ("rbd0",))
    made.block("loop0", "7:0", loop__backing_file="/srv/nfs/disk.img")
    made.block("nvme0n1", "259:0", device__transport="tcp")
    made.block("nvme1n1", "259:1", device__nvme1__transport="pcie")
    made.block("vda", "254:0")
    return made


MOUNTS = """\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:40 / /srv/nfs rw - nfs4 server:/export rw,vers=4.2
22 20 250:0 / /srv/rbd rw - xfs /dev/rbd0 rw
23 20 0:41 / /srv/s3 rw - fuse.s3fs s3fs rw
24 20 0:42 / /srv/lower rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/srv/rbd/upper,workdir=/w
25 20 0:43 / /dev/shm rw - tmpfs tmpfs rw
26 20 0:44 / /srv/btrfs rw - btrfs /dev/sda rw
27 20 0:45 / /srv/own\\040fs rw - fuse.mine mine rw
28 20 0:46 / /srv/ceph rw - ceph mon1,mon2:/ rw
29 20 7:0 / /srv/loop rw - ext4 /dev/loop0 rw
30 20 0:47 / /srv/gluster rw - fuse.glusterfs node:/vol rw
31 20 0:48 / /srv/zfs rw - zfs pool/data rw
"""


@pytest.mark.parametrize(
    ("point", "place", "read", "write"),
    [
        ("/", Place.LOCAL, 0, 0),
        ("/srv/nfs", Place.REMOTE_FS, 2, 2),
        ("/srv/rbd", Place.VOLUME, 2, 4),
        ("/srv/s3", Place.OBJECT, 4, 4),
        ("/srv/lower", Place.VOLUME, 2, 4),
        ("/srv/btrfs", Place.LOCAL, 0, 0),
        ("/srv/own fs", Place.REMOTE_FS, 2, 2),
        ("/srv/ceph", Place.REMOTE_FS, 2, 4),
        ("/srv/loop", Place.REMOTE_FS, 2, 2),
        ("/srv/gluster", Place.REMOTE_FS, 2, 2),
        ("/srv/zfs", Place.LOCAL, 0, 0),
    ],
)
def test_mounts(tree: Tree, point: str, place: Place, read: int, write: int):
    mounts = parse_mounts(MOUNTS)
    devices = Devices(tree.fs, tree.readlink, mounts.values())
    found = devices.of_mount(next(mount for mount in mounts.values() if mount.point == point))
    assert found is not None
    made = IoUse(found.on, found.layers, 1)
    assert (made.place, *made.links) == (place, read, write), found


def test_file_systems_without_a_disk_are_left_out(tree: Tree):
    mounts = parse_mounts(MOUNTS)
    assert Devices(tree.fs, tree.readlink, mounts.values()).of_mount(mounts["25"]) is None


@pytest.mark.parametrize(
    ("number", "place", "read", "write", "on"),
    [
        ("8:1", Place.LOCAL, 0, 0, "sda"),
        ("43:0", Place.VOLUME, 2, 2, "nbd0"),
        ("147:0", Place.VOLUME, 0, 2, "drbd0"),
        ("9:0", Place.VOLUME, 2, 4, "md0 (raid1) on nbd0"),
        ("253:0", Place.VOLUME, 2, 4, "dm-0 on rbd0"),
        ("259:0", Place.VOLUME, 2, 2, "nvme0n1"),
        ("259:1", Place.LOCAL, 0, 0, "nvme1n1"),
        ("254:0", Place.LOCAL, 0, 0, "vda"),
    ],
)
def test_block_devices(tree: Tree, number: str, place: Place, read: int, write: int, on: str):
    found = Devices(tree.fs, tree.readlink, parse_mounts(MOUNTS).values()).of_block(number)
    assert found is not None
    made = IoUse("", found.layers, 1)
    assert (made.place, *made.links, found.on) == (place, read, write, on)


def test_iscsi_by_its_session(tree: Tree):
    tree.block("sdb", "8:16")
    tree.link("/sys/devices/x/sdb/device", "../../platform/host6/session1/target6:0:0/6:0:0:1")
    tree.link("/sys/block/sdb", "../devices/x/sdb")
    found = Devices(tree.fs, tree.readlink, ()).of_block("8:16")
    assert found is not None
    assert found.layers[0].name == "iSCSI"


def test_devices_that_lie_on_each_other_end(tree: Tree):
    tree.block("dm-1", "253:1", ("dm-1",))
    assert Devices(tree.fs, tree.readlink, ()).of_block("253:1") is not None
    assert Devices(tree.fs, tree.readlink, ()).of_block("99:99") is None


def tcp_line(peer: str, port: int, inode: int, state: str = "01") -> str:
    address = socket.inet_aton(peer)
    text = f"{struct.unpack('=I', address)[0]:08X}:{port:04X}"
    return f"   0: 0100007F:A000 {text} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


def test_connections():
    text = "  sl  local_address ...\n" + tcp_line("10.0.0.7", 9866, 5) + tcp_line("10.0.0.8", 443, 6)
    text += tcp_line("0.0.0.0", 0, 7, "0A")
    assert parse_connections(text) == {"5": ("10.0.0.7", 9866), "6": ("10.0.0.8", 443)}
    line = tcp_line("10.0.0.9", 2049, 8)
    address = line.split()[2].partition(":")[0]
    with_six = line.replace(f" {address}:", f" {'0' * 16}FFFF0000{address}:")
    assert parse_connections("head\n" + with_six) == {"8": ("10.0.0.9", 2049)}


@pytest.mark.parametrize(
    ("peer", "links"),
    [
        (("10.0.0.7", 9866), (2, 4)),
        (("10.0.0.7", 7480), (4, 4)),
        (("10.0.0.7", 2049), (2, 2)),
        (("127.0.0.1", 10809), (0, 0)),
    ],
)
def test_storage_services_by_port(peer: tuple[str, int], links: tuple[int, int]):
    found = of_peer(*peer)
    assert found is not None
    assert IoUse("", found.layers, 1).links == links


def test_a_web_server_is_no_storage():
    assert of_peer("10.0.0.7", 443) is None
    assert of_peer("10.0.0.7", 3306) is None


def test_programs_that_replicate():
    named = {
        "java -Xmx1g org.apache.hadoop.hdfs.server.datanode.DataNode": "HDFS",
        "/usr/bin/mongod --config x": "MongoDB",
    }
    for argv, name in named.items():
        layer = own_layer(argv.replace(" ", "\0"))
        assert layer is not None
        assert layer.name == name
    assert own_layer("mysqld\0--user=etcd") is None
    assert own_layer("vim\0mongod.conf") is None


def test_look_at_a_data_node_on_a_replicated_volume(tree: Tree):
    tree.process(
        7, MOUNTS, "java org.apache.hadoop.hdfs.server.datanode.DataNode",
        n3=("/srv/rbd/blk_1", "22"), n4=("/srv/rbd/blk_2", "22"), n5=("/var/log/dn.log", "20"),
        n6=("socket:[50]", "0"), n7=("/dev/shm/x", "25"), n8=("pipe:[9]", "0"), n9=("/dev/null", "20"),
    )  # fmt: skip
    tree.write("/proc/7/net/tcp", "head\n" + tcp_line("10.0.0.9", 9866, 50))
    found = look(tree.fs, tree.readlink, [7, 8])
    assert found.skipped == 1, "process 8 is gone"
    assert found.sockets == {"50"}
    links = {each.what: (*each.links, each.count) for each in found.uses}
    assert links == {
        "/srv/rbd (xfs on rbd0)": (2, 15, 2),
        "HDFS at 10.0.0.9:9866": (2, 4, 1),
        "/ (ext4 on sda)": (0, 3, 1),
    }
    assert found.uses[0].what == "/srv/rbd (xfs on rbd0)", "the farthest first"
    assert len(flaws(found.uses)) == 1


def test_the_cost_is_bounded(tree: Tree, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("perphd.host.storage_path.MOST_FILES", 3)
    fds = {f"n{number}": ("/data/x", "20") for number in range(5)}
    tree.process(7, MOUNTS, "db", **fds)
    found = look(tree.fs, tree.readlink, [7])
    assert (found.uses[0].count, found.skipped) == (3, 2)
    assert look(tree.fs, tree.readlink, range(1000, 1000 + MOST_PROCESSES + 5)).skipped == MOST_PROCESSES + 5


def stat_line(state: str, ticks: int = 0, block: int = 0) -> str:
    words = [state, *["0"] * 48]
    words[11], words[39] = str(ticks), str(block)
    return f"7 (a (strange) name) {' '.join(words)}\n"


@pytest.mark.parametrize(
    ("state", "wchan", "sockets", "expected"),
    [
        ("D", "io_schedule", frozenset(), (1.0, 0.0)),
        ("D", "rpc_wait_bit_killable", frozenset(), (0.0, 1.0)),
        ("S", "request_wait_answer", frozenset(), (0.0, 1.0)),
        ("S", "sk_wait_data", frozenset({"50"}), (0.0, 1.0)),
        ("S", "sk_wait_data", frozenset({"51"}), (0.0, 0.0)),  # waits for a client
        ("R", "0", frozenset({"50"}), (0.0, 0.0)),
    ],
)
def test_where_a_thread_waits(
    tree: Tree, state: str, wchan: str, sockets: frozenset[str], expected: tuple[float, float]
):
    base = "/proc/7/task/7"
    tree.write(f"{base}/stat", stat_line(state))
    tree.write(f"{base}/wchan", wchan)
    number = "0x4"
    tree.write(f"{base}/syscall", f"{63 if os.uname().machine == 'aarch64' else 0} {number} 0x0")
    tree.link("/proc/7/fd/4", "socket:[50]")
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 0.01)

    found = split(tree.fs, tree.readlink, lambda: [(7, 7)], sockets, 1.0, sleep, lambda: now[0])
    assert (found.block, found.network) == expected
    assert found.block_source.startswith("sampled")


def test_counters_are_preferred_to_samples(tree: Tree):
    tree.write("/proc/sys/kernel/task_delayacct", "1\n")
    tree.write("/proc/7/task/7/stat", stat_line("R"))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        ticks = int(now[0] * os.sysconf("SC_CLK_TCK") / 2)
        tree.write("/proc/7/task/7/stat", stat_line("R", ticks, ticks // 2))

    found = split(tree.fs, tree.readlink, lambda: [(7, 7)], frozenset(), 2.0, sleep, lambda: now[0])
    assert found.cpu == pytest.approx(0.5, abs=0.03)
    assert found.block == pytest.approx(0.25, abs=0.03)
    assert found.block_source == "delay accounting"


def test_looks_from_a_threads_own_cpu_do_not_count_beside_others(tree: Tree):
    cpus = sorted(os.sched_getaffinity(0))
    now, looks = [0.0], [0]

    def threads() -> list[tuple[int, int]]:
        """A thread of the last CPU, seen to wait from the others alone; on a host of one CPU it is never seen."""
        own = os.sched_getaffinity(0) == {cpus[-1]}
        words = stat_line("R" if own else "D").split()
        words[-13] = str(cpus[-1])
        tree.write("/proc/7/task/7/stat", " ".join(words))
        looks[0] += 1
        return [(7, 7)]

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 0.01)

    found = split(tree.fs, tree.readlink, threads, frozenset(), 1.0, sleep, lambda: now[0])
    assert looks[0] > len(cpus)
    assert found.block == (1.0 if len(cpus) > 1 else 0.0)
    assert sorted(os.sched_getaffinity(0)) == cpus


def test_the_command_without_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERPHD_SOCKET", str(tmp_path / "none"))
    done = CliRunner().invoke(cli, ["iopath", "/no/such/group", "--json"])
    assert done.exit_code == 1
    assert "no process runs" in json.loads(done.stdout)["error"]["message"]
    done = CliRunner().invoke(cli, ["iopath", "mysql"])
    assert done.exit_code == 1
    assert "give the control group's path" in done.output
