#!/usr/bin/python3 -IS
"""The native helper of a NodeManager's LinuxContainerExecutor, for tests: runs everything as root.

The NodeManager itself creates, limits and removes the control groups of containers. It calls its helper as
``container-executor USER YARN_USER COMMAND ARGUMENT...`` and expects it to prepare folders, to start a container's
script in the given groups, and to signal and delete. This helper serves only the calls that a cluster without Docker
makes.

Where cpu and cpuacct are separate mounts, a container gets a group in cpuacct as well. Hosts with control groups of
version 1 mount both together, so the NodeManager knows only one of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

NO_SUCH_PROCESS = 9
"""Exit status that tells the NodeManager that a container is gone."""


def _folders(text: str) -> list[Path]:
    return [Path(each) for each in text.split(",")]


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _accounting(group: Path) -> Path | None:
    """The group in a separate cpuacct that belongs to this group in cpu."""
    mount, cpuacct = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuacct")
    if not group.is_relative_to(mount) or not cpuacct.is_dir() or cpuacct.samefile(mount):
        return None
    return cpuacct / group.relative_to(mount)


def prepare(user: str, app: str, _container: str, tokens: str, local: str, logs: str, *localizer: str) -> int:
    """Create an application's folders, then become the localizer, which fetches its files."""
    for folder in _folders(logs):
        (folder / app).mkdir(parents=True, exist_ok=True)
    homes = [folder / "usercache" / user for folder in _folders(local)]
    for home in homes:
        (home / "filecache").mkdir(parents=True, exist_ok=True)
        (home / "appcache" / app).mkdir(parents=True, exist_ok=True)
    there = homes[0] / "appcache" / app
    shutil.copy(tokens, there)
    os.chdir(there)
    os.execvp(localizer[0], localizer)


def launch(user: str, app: str, container: str, work: str, script: str, tokens: str, *rest: str) -> int:
    """Run a container's script in its groups and wait for it; the exit status goes beside the pid file."""
    _no_https, pid_file, local, logs, resources = rest[:5]
    for folder in _folders(logs):
        (folder / app / container).mkdir(parents=True, exist_ok=True)
    for folder in _folders(local):
        (folder / "usercache" / user / "appcache" / app / container).mkdir(parents=True, exist_ok=True)
    place = Path(work)
    place.mkdir(parents=True, exist_ok=True)
    started = place / "launch_container.sh"
    shutil.copy(script, started)
    shutil.copy(tokens, place / "container_tokens")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        groups = resources.removeprefix("cgroups=")
        for tasks in [] if groups == "none" else groups.split("%"):
            Path(tasks).write_text(f"{os.getpid()}")
            if (twin := _accounting(Path(tasks).parent)) is not None:
                twin.mkdir(exist_ok=True)
                (twin / "tasks").write_text(f"{os.getpid()}")
        _write(Path(pid_file), f"{os.getpid()}")
        os.chdir(place)
        os.execvp("bash", ["bash", str(started)])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for tasks in resources.removeprefix("cgroups=").split("%"):
        if (twin := _accounting(Path(tasks).parent)) is not None:
            with contextlib.suppress(OSError):  # processes outlive the container
                twin.rmdir()
    status = code if code >= 0 else 128 - code
    _write(Path(f"{pid_file}.exitcode"), f"{status}")
    return status


def send(pid: str, number: str) -> int:
    """Signal a container's process group."""
    try:
        os.killpg(int(pid), int(number))
    except ProcessLookupError:
        return NO_SUCH_PROCESS
    return 0


def delete(target: str, *bases: str) -> int:
    """Remove a file or folder, below each of ``bases`` if there are any."""
    for path in [Path(base, target) for base in bases] or [Path(target)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Serve one call."""
    if arguments[:1] == ["--checksetup"]:
        return 0
    user, _, command, *rest = arguments
    match command:
        case "0":
            return prepare(user, *rest)
        case "1":
            return launch(user, *rest)
        case "2":
            return send(*rest)
        case "3":
            return delete(*rest)
        case "5":
            print("\n".join(os.listdir(rest[0])))
            return 0
    print(f"not served: {arguments}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
