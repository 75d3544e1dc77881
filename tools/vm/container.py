"""A booted Debian in namespaces of this machine: systemd as PID 1, native speed, this machine's kernel.

For questions of time, which emulated processors do not answer. It has its own processes, mounts, control groups,
network (loopback alone), host name and device nodes. Kernel settings and /sys are read-only there, and it may neither
set the clock nor load modules. Its control groups lie below one group in each hierarchy of this machine, which is
removed at the end.

The hierarchies are this machine's: with cgroup v1 or the hybrid layout here, systemd there runs on that. Needs root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.vm.making import VmError, kept, mirror, run

PACKAGES = "ca-certificates,dbus,iproute2,libpam-systemd,procps,python3,sudo,systemd-sysv"
HOSTNAME = "perphd-container"
BOOT_S = 60.0
COMMAND_S = 600.0
TOOLS = ("mmdebstrap", "unshare", "nsenter", "pivot_root", "setpriv")
MASKED = (
    "console-getty.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "systemd-networkd.service",
    "systemd-timesyncd.service",
)
_OTHER_OPTIONS = frozenset({"rw", "ro", "xattr", "noprefix", "clone_children"})
_NO_CAPABILITY = "-sys_time,-sys_module,-sys_boot,-sys_rawio,-wake_alarm,-syslog,-mac_admin"
_INSIDE = r"""
set -e
root=$1 console=$2
mount --make-rprivate /
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
for path in sys sysrq-trigger; do
    [ -e "$root/proc/$path" ] || continue
    mount --bind "$root/proc/$path" "$root/proc/$path"
    mount -o remount,bind,ro "$root/proc/$path"
done
mount -t sysfs -o nosuid,nodev,noexec,ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0'; do
    set -- $node
    mknod -m 666 "$root/dev/$1" c "$2" "$3"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for n in 0 1 2; do ln -s /proc/self/fd/$n "$root/dev/$(echo stdin stdout stderr | cut -d' ' -f$((n + 1)))"; done
mount -t tmpfs tmpfs "$root/dev/shm"
: > "$root/dev/console"
mount --bind "$console" "$root/dev/console"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    while read -r path kind options; do
        mkdir -p "$root$path"
        mount -t "$kind" ${options:+-o "$options"} "$kind" "$root$path"
    done <<END
$HIERARCHIES
END
fi
ip link set lo up
cd "$root"
mkdir -p .before
pivot_root . .before
umount -l /.before
rmdir /.before
read -r go
exec env -i container=perphd PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_PROC_CMDLINE="$BOOT_OPTIONS" \
    setpriv --bounding-set "$DROPPED" --inh-caps "$DROPPED" /lib/systemd/systemd < /dev/null > /dev/console 2>&1
"""


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """One mounted cgroup hierarchy of this machine; ``options``: those of its mount that name controllers."""

    path: Path
    kind: str
    options: str


def root_with(suite: str, cache: Path, deb: Path, servers: Sequence[str]) -> Path:
    """A root file system in whose apt cache lie ``servers`` and what ``deb`` depends on; from the cache or made now.

    Nothing of that is installed.

    Raises:
        VmError: it cannot be made here.
    """
    needed = run("dpkg-deb", "-f", str(deb), "Depends", "Recommends")
    recipe = cache / "container-packages"
    cache.mkdir(parents=True, exist_ok=True)
    recipe.write_text(f"{needed}{servers}")
    label = f"container-{suite}"

    def make(work: Path, made: Path) -> None:
        hook = work / "hook"
        masked = " ".join(f"/etc/systemd/system/{unit}" for unit in MASKED)
        hook.write_text(
            "set -e\n"
            'chroot "$1" apt-get clean\n'
            f'cp {shlex.quote(str(deb))} "$1/root/wanted.deb"\n'
            # With what packages recommend, as an operator's apt takes it; mmdebstrap's own does not.
            'chroot "$1" apt-get -qq -y --download-only -o APT::Install-Recommends=true -o APT::Sandbox::User=root '
            f"install /root/wanted.deb {shlex.join(servers)}\n"
            'rm -f "$1/root/wanted.deb" "$1/etc/apt/apt.conf.d/99mmdebstrap"\n'
            f'for path in {masked}; do ln -sf /dev/null "$1$path"; done\n'
            ': > "$1/etc/machine-id"\n'
            f'echo {HOSTNAME} > "$1/etc/hostname"\n'
            f'echo 127.0.1.1 {HOSTNAME} >> "$1/etc/hosts"\n'
        )
        run(
            "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={PACKAGES}",
            "--aptopt=APT::Install-Recommends \"false\"", "--skip=cleanup/apt", "--components=main", "--quiet",
            f"--customize-hook=sh {hook} \"$1\"", suite, str(made / "root"), mirror(),
        )  # fmt: skip

    return kept(cache, label, suite, (Path(__file__), recipe), TOOLS, "vm", make) / "root"


class Container:
    """One booted container on an overlay of ``root``; its own files lie in ``folder``, which is removed at the end."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._hierarchies = _hierarchies()
        self._name = f"perphd-container-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def console(self) -> str:
        """Output of systemd until now."""
        return (self._folder / "console").read_text(errors="replace")

    @property
    def layout(self) -> str:
        """The control group layout that systemd there has."""
        kinds = {each.kind for each in self._hierarchies}
        return "v2" if kinds == {"cgroup2"} else "v1" if kinds == {"cgroup"} else "hybrid"

    def boot(self) -> float:
        """Start and wait until systemd has started everything; returns the seconds taken.

        Raises:
            VmError: it cannot be started here, ended, or does not finish.
        """
        if os.geteuid() != 0:
            raise VmError("a container with systemd needs root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise VmError(f"needs {', '.join(missing)}: packaging/apt-install vm")
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("upper", "work", "root"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "console").touch()
        began_s = time.monotonic()
        self._process = subprocess.Popen(
            ["sh", "-c", self._outside()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "errors").open("wb"),
            env=os.environ
            | {
                "HIERARCHIES": "\n".join(f"{e.path} {e.kind} {e.options}" for e in self._hierarchies),
                "BOOT_OPTIONS": "systemd.unified_cgroup_hierarchy="
                + ("1" if self.layout == "v2" else "0 systemd.legacy_systemd_cgroup_controller=no"),
                "DROPPED": _NO_CAPABILITY,
            },
        )
        try:
            self._leave_groups()
            assert self._process.stdin is not None
            self._process.stdin.write(b"go\n")
            self._process.stdin.close()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - began_s

    def run(self, command: str, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a shell command there as root, as a transient unit in user.slice."""
        unit = ("--quiet", "--pipe", "--wait", "--collect", "--slice=user.slice")
        place = ("--setenv=HOME=/root", "--working-directory=/root")
        # systemd replaces variables in the words of a command line; $$ is one $.
        inside = ("systemd-run", *unit, *place, "sh", "-c", command.replace("$", "$$"))
        return self._enter(*inside, timeout_s=timeout_s)

    def put(self, source: Path, folder: str) -> None:
        """Copy a file into a folder there; before ``boot``, or while it runs."""
        packed = source.read_bytes()
        target = f"{folder}/{source.name}"
        words = ("sh", "-c", f"cat > {shlex.quote(target)}")
        done = subprocess.run([*self._nsenter(), *words], input=packed, capture_output=True, check=False)
        if done.returncode:
            raise VmError(f"{target} was not written: {done.stderr.decode()}")

    def stop(self) -> None:
        """Power off, end what is left, and remove its control groups and files. Stopping twice is allowed."""
        if self._process is not None:
            if (pid := self._init()) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGRTMIN + 4)  # systemd's power-off
            try:
                self._process.wait(30.0)
            except subprocess.TimeoutExpired:
                self._process.kill()  # PID 1 there ends with it (--kill-child), and everything with PID 1
                self._process.wait()
            self._process = None
        for hierarchy in self._hierarchies:
            _remove(hierarchy.path / self._name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _outside(self) -> str:
        """The shell script that enters the groups, mounts the root file system and makes the namespaces."""
        root, folder = self._folder / "root", self._folder
        lines = ["set -e"]
        for hierarchy in self._hierarchies:
            group = hierarchy.path / self._name
            lines.append(f"mkdir {group}")
            if "cpuset" in hierarchy.options.split(","):
                lines += [
                    f"cat {hierarchy.path}/{file} > {group}/{file}" for file in ("cpuset.cpus", "cpuset.mems")
                ]
            lines.append(f"echo $$ > {group}/cgroup.procs")
        inside = (
            f"mount -t overlay -o lowerdir={self._root},upperdir={folder}/upper,workdir={folder}/work overlay {root}\n"
            f"{_INSIDE}"
        )
        lines.append(
            "exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private "
            f"sh -c {shlex.quote(inside)} sh {root} {folder}/console"
        )
        return "\n".join(lines)

    def _leave_groups(self) -> None:
        """Take the outer process out of the container's groups, as soon as the inner one is there.

        cgroup v2 distributes no controllers from a group that has processes itself, and systemd cannot move this one.
        """
        assert self._process is not None
        end_s = time.monotonic() + 10.0
        while self._init() is None:
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise VmError(f"it did not start: {(self._folder / 'errors').read_text()}")
            time.sleep(0.02)
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        for hierarchy in self._hierarchies:
            path = own.get("" if hierarchy.kind == "cgroup2" else hierarchy.options, "/")
            (hierarchy.path / path.lstrip("/") / "cgroup.procs").write_text(str(self._process.pid))

    def _init(self) -> int | None:
        """PID 1 of the container, as this machine numbers it."""
        assert self._process is not None
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def _nsenter(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self._init()), "-m", "-p", "-n", "-u", "-i", "-C", "--root", "--wd")

    def _enter(self, *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        command = [*self._nsenter(), *words]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def _wait(self) -> None:
        assert self._process is not None
        end_s, said = time.monotonic() + BOOT_S, ""
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                raise VmError(f"it ended: {(self._folder / 'errors').read_text()}{self.console[-2000:]}")
            said = self._enter("systemctl", "is-system-running", timeout_s=20.0).stdout.strip()
            if said in ("running", "degraded"):
                return
            time.sleep(0.2)
        raise VmError(f"systemd did not finish within {BOOT_S:.0f} s ({said}):\n{self.console[-2000:]}")


def _hierarchies() -> tuple[_Hierarchy, ...]:
    """The cgroup hierarchies that this machine has mounted from their roots."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        (kind, _, options), (root, path) = right.split(" ", 2), left.split()[3:5]
        if kind not in ("cgroup", "cgroup2") or root != "/":
            continue
        named = [word for word in options.split(",") if word not in _OTHER_OPTIONS]
        found.append(_Hierarchy(Path(path), kind, ",".join(named) if kind == "cgroup" else ""))
    if not found:
        raise VmError("no cgroup hierarchy is mounted from its root here")
    return tuple(found)


def _remove(group: Path) -> None:
    """Remove a group and those below it; their processes may need a moment to be gone."""
    end_s = time.monotonic() + 10.0
    while group.is_dir():
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        if time.monotonic() > end_s:
            raise VmError(f"{group} could not be removed: its processes have not ended")
        time.sleep(0.05)
