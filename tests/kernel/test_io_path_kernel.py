"""The storage path of real processes on this kernel: a local file, a file system of a program, connections, waits."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from perphd.domain.io_path import Place, TimeSplit
from perphd.domain.reading import available
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.io_wait import split
from perphd.host.storage_path import look

pytestmark = pytest.mark.requires_root
FS = RealFs("/")
DISKS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})


@contextmanager
def child(script: str, *arguments: str, own_mounts: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said "ready"."""
    prefix = ["unshare", "--mount", "--propagation", "private"] if own_mounts else []
    made = subprocess.Popen(
        [*prefix, sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        yield made
    finally:
        made.kill()
        made.communicate()


def watch(pid: int, sockets: frozenset[str] = frozenset(), seconds: float = 2.0) -> TimeSplit:
    def threads() -> list[tuple[int, int]]:
        return [(pid, int(name)) for name in FS.subdirectories(f"/proc/{pid}/task")]

    return split(FS, os.readlink, threads, sockets, seconds)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a disk of this host."""
    points = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    matching = [words for words in points if tmp_path.is_relative_to(words[1])]
    if max(matching, key=lambda words: len(words[1]))[2] not in DISKS:
        pytest.skip("needs a temporary folder on a disk (TMPDIR)")
    return tmp_path


def test_a_local_file_and_a_connection_to_a_block_server(disk: Path):
    with closing(socket.socket()) as server:
        try:
            server.bind(("127.0.0.2", 10809))
        except OSError:
            pytest.skip("something listens on NBD's port already")
        server.listen()
        script = """
            import socket, sys
            file = open(sys.argv[1], "w"); connection = socket.create_connection(("127.0.0.2", 10809))
            print("ready", flush=True); sys.stdin.read()
        """
        with child(script, str(disk / "data")) as process:
            found = look(FS, os.readlink, [process.pid])
    by_place = {use.place: use for use in found.uses}
    assert by_place[Place.LOCAL].example == str(disk / "data")
    assert by_place[Place.LOCAL].links == (0, 0)
    assert by_place[Place.VOLUME].what == "NBD at 127.0.0.2:10809"
    assert len(found.sockets) == 1


FUSE = """
    import ctypes, os, stat, subprocess, sys, threading, time
    import mfusepy

    class Slow(mfusepy.Operations):
        use_ns = True

        def getattr(self, path, fh=None):
            directory = path == "/"
            return {"st_mode": stat.S_IFDIR | 0o755 if directory else stat.S_IFREG | 0o444, "st_nlink": 1,
                    "st_size": 0 if directory else 1 << 30}

        def readdir(self, path, fh):
            return [".", "..", "data"]

        def read(self, path, size, offset, fh):
            time.sleep(0.2)
            return bytes(size)

    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, 9)  # ends with its parent
        mfusepy.FUSE(Slow(), sys.argv[1], foreground=True, direct_io=True, subtype="slow", fsname="slow")
        os._exit(0)
    while not os.path.exists(f"{sys.argv[1]}/data"):
        time.sleep(0.05)
    file = os.open(f"{sys.argv[1]}/data", os.O_RDONLY)
    print("ready", flush=True)
    while True:
        os.pread(file, 4096, 0)
"""


def test_a_file_system_of_a_program_is_remote_and_waits_for_it_are_no_disk_waits(tmp_path: Path):
    pytest.importorskip("mfusepy", reason="needs mfusepy (perphd[fuse])")
    if not (os.path.exists("/dev/fuse") and shutil.which("unshare") and shutil.which("fusermount3")):
        pytest.skip("needs FUSE, fusermount3 and unshare")
    with child(FUSE, str(tmp_path), own_mounts=True) as process:
        found = look(FS, os.readlink, [process.pid])
        times = watch(process.pid)
    remote = [use for use in found.uses if use.place is Place.REMOTE_FS]
    assert [use.what for use in remote] == [f"{tmp_path} (fuse.slow from slow)"]
    assert remote[0].links == (2, 2)
    assert available(times.network)
    assert available(times.block)
    assert times.network > 0.5, times
    assert times.block < 0.1, times
    assert not os.path.exists(tmp_path / "data"), "the mount was the child's alone"


def test_a_cached_reader_waits_for_no_disk(disk: Path):
    (disk / "data").write_bytes(bytes(1 << 20))
    script = """
        import os, sys
        file = os.open(sys.argv[1], os.O_RDONLY)
        os.pread(file, 1 << 20, 0)
        print("ready", flush=True)
        while True:
            os.pread(file, 4096, 0)
    """
    with child(script, str(disk / "data")) as process:
        times = watch(process.pid)
    assert available(times.cpu)
    assert available(times.block)
    assert times.cpu > times.block
    assert times.network == 0.0


WRITER = """
    import os, sys
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    print("ready", flush=True)
    while True:
        os.pwrite(file, b"x" * 4096, 0)
        if sys.argv[2] == "sync":
            os.fsync(file)
"""


@pytest.mark.flaky(reruns=2, reruns_delay=5)  # others use this disk as well
def test_a_writer_that_syncs_waits_for_its_disk(disk: Path):
    with child(WRITER, str(disk / "data"), "sync") as process:
        times = watch(process.pid)
    with child(WRITER, str(disk / "data"), "leave") as process:
        cached = watch(process.pid)
    assert available(times.cpu)
    assert available(times.block)
    assert available(cached.block)
    # A fast disk answers while the writer is still on its CPU, and then it waits for a CPU on a full host.
    assert times.block > 0.15 * (1.0 - times.cpu), times
    assert times.block > 3.0 * cached.block, (times, cached)


@pytest.mark.requires_cgroup_v2
def test_the_command_tells_how_long_a_group_stood_still_for_its_disk(disk: Path):
    tree = next(each for each in discover(RealFs()).all() if each.version == 2)
    group = Path(tree.path(f"/perphd-test-iopath-{os.getpid()}"))
    group.mkdir()
    script = """
        import os, sys
        file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
        print("ready", flush=True)
        while True:
            os.pwrite(file, bytes(4096), 0); os.fsync(file)
    """
    try:
        with child(script, str(disk / "data")) as process:
            (group / "cgroup.procs").write_text(str(process.pid))
            argv = [
                "-c",
                "from perphd.commands.cli import main; main()",
                "--json",
                "iopath",
                f"/{group.name}",
                "--seconds",
                "1",
            ]
            told = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=True)
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)
    threads = json.loads(told.stdout)["threads"]
    assert 1.0 < threads["stalled_pct"] <= 100.0, told.stdout


def test_threads_that_end_meanwhile_do_no_harm():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(0.2,))
    thread.start()
    times = watch(os.getpid(), seconds=0.5)
    done.set()
    thread.join()
    assert available(times.cpu)
