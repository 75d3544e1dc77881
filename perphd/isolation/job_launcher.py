"""Starts one job and waits for it, where there is no systemd. Run by its path; uses only the standard library.

It reads one JSON object from standard input and writes one line to standard output: ``started``, ``exists`` or the
reason for its failure. It outlives the daemon. Two files tell the daemon about the job:

    UNIT.started boot id, process id and start time of this process; never replaced
    UNIT.ended the exit status in the shell's form: 128 plus the number of a signal

The job enters its control groups and gets its log as root. It then becomes its user, so the kernel opens its directory,
its output file and its program with that user's rights.
"""

import contextlib
import json
import os
import signal
import sys
import warnings  # noqa: F401  os.execvpe wants it, when the user may not read Python's library

START_FAILED = 126
NOT_FOUND = 127
_SIGNALS = 128


def start_ticks(pid: int) -> int:
    """Start time of a process, in clock ticks since boot; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == b"Z" else int(fields[19])


def written(path: str, record: object, once: bool = False) -> bool:
    """Write a record atomically and sync it to disk.

    ``once``: never replace an existing record; returns False if there is one.
    """
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8", opener=_for_owner) as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        if once:
            os.link(temporary, path)
        else:
            os.rename(temporary, path)
    except FileExistsError:
        return False
    finally:
        if once:
            os.unlink(temporary)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return True


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def become(asked: dict) -> None:  # type: ignore[type-arg]
    """Replace this process with the job (exec). Never returns; raises an exception if that fails."""
    for file in asked["procs"]:
        with open(file, "w") as procs:
            procs.write("0")
    if asked["oom_score_adj"]:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(str(asked["oom_score_adj"]))
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if os.geteuid() == 0:
        os.setgroups(asked["groups"])
        os.setresgid(asked["gid"], asked["gid"], asked["gid"])
        os.setresuid(asked["uid"], asked["uid"], asked["uid"])
    elif os.geteuid() != asked["uid"]:
        raise PermissionError(1, "only root can start jobs of other users")
    os.umask(0o022)
    os.chdir(asked["directory"])
    if asked["output"]:
        output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(asked["command"][0], asked["command"], dict(asked["environment"]))


def main() -> None:
    """Start the job that standard input describes, wait for it, and record its status."""
    asked = json.load(sys.stdin)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pid, path = os.getpid(), os.path.join(asked["folder"], asked["unit"])
    record = {"boot": asked["boot"], "pid": pid, "start": start_ticks(pid)}
    try:
        first = written(f"{path}.started", record, once=True)
    except OSError as exc:
        say(f"{path}.started: {exc.strerror}")
        return
    if not first:
        say("exists")
        return
    reading, writing = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        status, text = START_FAILED, ""
        try:
            os.setsid()
            become(asked)
        except FileNotFoundError as exc:
            status, text = NOT_FOUND, f"{exc.filename}: {exc.strerror}"
        except Exception as exc:  # the pipe reports any failure to the daemon
            text = f"{getattr(exc, 'filename', None) or asked['command'][0]}: {getattr(exc, 'strerror', repr(exc))}"
        finally:
            os.write(writing, text.encode(errors="replace"))
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode(errors="replace")
    say("started")
    waited = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(waited)
    written(f"{path}.ended", {"status": code if code >= 0 else _SIGNALS - code, "reason": problem})


def say(line: str) -> None:
    """Send a line to the daemon and close the pipes to it."""
    with contextlib.suppress(OSError):  # the daemon may have been killed meanwhile
        os.write(1, line.encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


if __name__ == "__main__":
    main()
