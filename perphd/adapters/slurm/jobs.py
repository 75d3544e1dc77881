"""Slurm's jobs as workloads: the prolog hands a job over to the daemon, and the epilog takes it back.

A job declares itself by its comment (``sbatch --comment perphd=batch``) if the operator allows that kind; without such
a comment, its partition decides. It becomes the workload ``slurm-JOBID`` with the job's control group, which need not
exist yet. The daemon remembers it across restarts. ``JobWatch`` removes workloads whose epilog never ran.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perphd.control.client import Client, Refused
from perphd.domain.errors import PerphError
from perphd.domain.workload import Kind

PREFIX: Final = "slurm-"
LOOKS_TO_REMOVE: Final = 2
_COMMENT: Final = re.compile(r"(?:^|[\s,;])perphd=([a-z]+)(?=$|[\s,;])", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_log: Final = logging.getLogger("perphd.slurm")


class JobError(PerphError):
    """A job that cannot be handed over."""


@dataclass(frozen=True, slots=True)
class Declarations:
    """The jobs to hand over: those of these partitions, and those whose comment names a kind in ``by_comment``."""

    batch_partitions: frozenset[str] = frozenset()
    lra_partitions: frozenset[str] = frozenset()
    by_comment: frozenset[Kind] = frozenset({Kind.BATCH})

    def kind_of(self, comment: str, partition: str) -> Kind | None:
        """The kind of a job; None: it is not handed over, which any job may request by ``perphd=none``.

        Raises:
            JobError: its comment declares a kind that is not allowed.
        """
        said = _COMMENT.search(comment)
        if said is not None:
            word = said[1]
            if word == "none":
                return None
            if word not in tuple(Kind) or Kind(word) not in self.by_comment:
                allowed = ", ".join([*sorted(self.by_comment), "none"])
                raise JobError(f"the comment perphd={word} is not accepted (allowed: {allowed})")
            return Kind(word)
        if partition in self.batch_partitions:
            return Kind.BATCH
        return Kind.LRA if partition in self.lra_partitions else None


def job_of(environment: Mapping[str, str]) -> str:
    """The job's number in the environment of a prolog or an epilog.

    Raises:
        JobError: it is missing.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not _NUMBER.fullmatch(job):
        raise JobError(f"SLURM_JOB_ID is {job!r}, not a job's number: run this from Slurm's prolog or epilog")
    return job


def group_of(environment: Mapping[str, str], root: Path = Path("/sys/fs/cgroup")) -> str:
    """The control group of a job; slurmd creates it when the first step starts.

    Version 1: ``/slurm/uid_U/job_J``, or ``/slurm_NODE/...`` where several slurmd may run on one host. Version 2:
    ``slurmstepd.scope/job_J``.

    Raises:
        JobError: slurmd keeps no control groups, or the environment is incomplete.
    """
    job, user, node = (
        job_of(environment),
        environment.get("SLURM_JOB_UID", ""),
        environment.get("SLURMD_NODENAME", ""),
    )
    if not _NUMBER.fullmatch(user) or not _NODE.fullmatch(node):
        raise JobError(
            f"SLURM_JOB_UID is {user!r} and SLURMD_NODENAME is {node!r}, but they must be a user's number and a node's "
            "name: run this from Slurm's prolog or epilog"
        )
    if (root / "cgroup.controllers").is_file():
        for scope in (f"{node}_slurmstepd.scope", "slurmstepd.scope"):
            if (root / "system.slice" / scope).is_dir():
                return f"/system.slice/{scope}/job_{job}"
    for name in (f"slurm_{node}", "slurm"):
        if any(mount.is_dir() for mount in root.glob(f"*/{name}")):
            return f"/{name}/uid_{user}/job_{job}"
    raise JobError(
        f"slurmd keeps no control groups below {root}: set ProctrackType=proctrack/cgroup in slurm.conf"
    )


def hand_over(client: Client, environment: Mapping[str, str], declarations: Declarations) -> str:
    """Add the job as a workload; returns a sentence about it. An existing workload stays.

    Raises:
        PerphError: the job's declaration is not accepted, or the daemon refuses it.
    """
    job = job_of(environment)
    kind = declarations.kind_of(
        environment.get("SLURM_JOB_COMMENT", ""), environment.get("SLURM_JOB_PARTITION", "")
    )
    if kind is None:
        return f"job {job} is not declared"
    name, group = f"{PREFIX}{job}", group_of(environment)
    if any(each["name"] == name and each.get("cgroup") == group for each in _workloads(client)):
        return f"job {job} is already declared"
    client.send("POST", "workloads", {"kind": kind.value, "name": name, "cgroup": group})
    return f"job {job} is {kind}: {group}"


def hand_back(client: Client, environment: Mapping[str, str]) -> str:
    """Remove the job's workload, so that its settings are restored; returns a sentence about it.

    Raises:
        PerphError: the daemon does not remove it.
    """
    job = job_of(environment)
    return f"job {job} is no longer declared" if _remove(client, job) else f"job {job} was not declared"


class JobWatch:
    """Removes workloads of jobs that Slurm no longer runs on this node.

    Args:
        client: client of the daemon.
        jobs: numbers of the jobs on this node.
    """

    def __init__(self, client: Client, jobs: Callable[[], Awaitable[frozenset[str]]]) -> None:
        self._client, self._jobs = client, jobs
        self._missing: dict[str, int] = {}

    async def round(self) -> None:
        """Remove workloads whose jobs were missing in ``LOOKS_TO_REMOVE`` rounds in a row.

        If the daemon does not answer, the next round retries.

        Raises:
            SlurmError: Slurm does not list its jobs.
        """
        try:
            known = await asyncio.to_thread(_jobs_in, self._client)
        except PerphError as exc:
            _log.debug("the daemon's workloads are unknown: %s", exc)
            return
        there = await self._jobs() if known else frozenset[str]()
        self._missing = {job: self._missing.get(job, 0) + 1 for job in known - there}
        for job in [job for job, looks in self._missing.items() if looks >= LOOKS_TO_REMOVE]:
            try:
                await asyncio.to_thread(_remove, self._client, job)
                _log.info("job %s has ended without an epilog: removed from the daemon", job)
            except PerphError as exc:
                _log.warning("job %s has ended and could not be removed from the daemon: %s", job, exc)


def _workloads(client: Client) -> list[Mapping[str, Any]]:
    # A workload declared with ``match`` has no control group until one is found.
    return list(client.get("workloads")["workloads"])


def _jobs_in(client: Client) -> frozenset[str]:
    """Jobs among the daemon's workloads."""
    return frozenset(
        each["name"].removeprefix(PREFIX)
        for each in _workloads(client)
        if each["added_at_run_time"]
        and each["name"].startswith(PREFIX)
        and each.get("cgroup", "").endswith(f"/job_{each['name'].removeprefix(PREFIX)}")
    )


def _remove(client: Client, job: str) -> bool:
    """Remove the job's workload; False if there is none."""
    try:
        client.send("DELETE", f"workloads/{PREFIX}{job}")
    except Refused as exc:
        if exc.status == 404:
            return False
        raise
    return True
