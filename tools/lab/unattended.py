"""Unattended labs on other people's hosts: safety checks before, and an anonymous result archive after the runs."""

from __future__ import annotations

import io
import os
import platform
import re
import socket
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.lab import usage
from tools.lab.processes import LabError

PACKED = ("report.md", "results.json", "runs.jsonl")
_NEEDED_BYTES = 6 << 30
_BUSY_SHARE = 0.05
_SERVERS = frozenset({
    "mariadbd", "mysqld", "postgres", "redis-server", "memcached", "java", "beam.smp", "mongod", "nginx", "httpd",
    "apache2", "haproxy", "kubelet", "dockerd", "qemu-system-x86_64", "qemu-kvm",
})  # fmt: skip
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


@dataclass(frozen=True, slots=True)
class Found:
    """Facts for the safety check."""

    free_bytes: int
    cpus: int
    others_cores: float | None
    servers: tuple[str, ...]
    resctrl_groups: tuple[str, ...]
    perphd_runs: bool


def objections(found: Found) -> list[str]:
    """Reasons not to start, each with its remedy; empty if the lab may run."""
    told = []
    if found.free_bytes < _NEEDED_BYTES:
        told.append(
            f"{found.free_bytes >> 20} MiB of memory are free, {_NEEDED_BYTES >> 20} MiB are needed: end what uses it"
        )
    if found.others_cores is not None and found.others_cores > max(0.1, _BUSY_SHARE * found.cpus):
        told.append(
            f"others use {found.others_cores:.1f} of {found.cpus} CPUs: the lab would disturb them, and they it; "
            "choose another time or host"
        )
    if found.servers:
        told.append(
            f"applications run here ({', '.join(found.servers)}): the lab would take CPU time from them"
        )
    if found.resctrl_groups:
        told.append(f"somebody has resctrl groups ({', '.join(found.resctrl_groups)}): remove them first")
    if found.perphd_runs:
        told.append("perphd runs here: systemctl stop perphd")
    return told


def look() -> Found:
    """Examine this host."""
    before = usage.machine_seconds()
    psutil.cpu_percent(interval=2.0)
    after = usage.machine_seconds()
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    resctrl = Path("/sys/fs/resctrl")
    made = ("info", "mon_data", "mon_groups")
    groups = (
        tuple(p.name for p in resctrl.iterdir() if p.is_dir() and p.name not in made)
        if resctrl.is_dir()
        else ()
    )
    return Found(
        psutil.virtual_memory().available,
        len(os.sched_getaffinity(0)),
        None if before is None or after is None else (after[0] - before[0]) / 2.0,
        tuple(sorted(names & _SERVERS)),
        groups,
        "perphd" in names,
    )


def check() -> None:
    """Check whether the lab may run unattended here.

    Raises:
        LabError: it may not; with all reasons.
    """
    told = objections(look())
    if told:
        raise LabError(
            "not started:\n" + "\n".join(f"  - {text}" for text in told)
            + "\n  (python -m tools.lab without --unattended does not ask)"
        )  # fmt: skip


def private_words() -> dict[str, str]:
    """Words that a result archive must not contain, with their replacements."""
    words = dict.fromkeys((platform.node(), socket.gethostname(), socket.getfqdn()), "HOST")
    words |= {name.partition(".")[0]: "HOST" for name in words}
    words |= {str(Path.home()): "HOME", os.environ.get("SUDO_USER", ""): "USER"}
    return {
        word: mark
        for word, mark in words.items()
        if len(word) > 2 and word not in ("localhost", "root", "/root")
    }


def anonymous(text: str, words: Mapping[str, str]) -> str:
    """The text without these words, and without addresses other than loopback's."""
    for word in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<![\w]){re.escape(word)}(?![\w])", words[word], text)
    return _ADDRESS.sub(lambda found: found[0] if found[0].startswith("127.") else "ADDRESS", text)


def pack(folder: Path, words: Mapping[str, str], names: Iterable[str] = PACKED) -> Path:
    """Put the results into ``results.tar.gz``, without names, owners and times. Returns its path."""
    target = folder / "results.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for name in names:
            path = folder / name
            if not path.exists():
                continue
            content = anonymous(path.read_text(), words).encode()
            member = tarfile.TarInfo(f"perphd-lab/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target
