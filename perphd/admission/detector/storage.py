"""Distinguishes slow storage from disks that other work on this host keeps busy.

Problem: an LRA waits for I/O. If batch keeps the disks busy, batch is the cause. If no other work on the host moves
data, its storage is slow: a remote volume, a file server, a worn disk. Restricting batch would not help then.

Approach: others = disk traffic of the host - traffic of the LRA; storage if others < max(own, ``LEAST_OTHERS``). Only
LRAs whose pages really come from storage qualify, since cached data do not depend on it.
"""

from __future__ import annotations

from typing import Final

from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import available, value_or
from perphd.domain.sample import Sample

PAGE_BYTES: Final = 4096.0
LEAST_PAGES_PER_S: Final = 16.0
"""Pages per second from which a workload depends on storage. Fewer pages are logs and the like."""
LEAST_OTHERS_BYTES_PER_S: Final = 1e6
"""Disk traffic of others, in bytes per second, that keeps no disk busy: logs and journals of an idle host."""


def pages_per_s(sample: Sample) -> float:
    """Pages per second from storage: page-cache refaults, or block I/O if that is more."""
    moved = value_or(sample.read_bytes_per_s, 0.0) + value_or(sample.write_bytes_per_s, 0.0)
    return max(value_or(sample.refaults_per_s, 0.0), moved / PAGE_BYTES)


def storage(found: Cause, sample: Sample, account: HostAccount | None, evidence: list[Evidence]) -> Cause:
    """STORAGE for an LRA that waits for I/O without competition on this host; else ``found``.

    Args:
        found: the contended resource.
        sample: the LRA's sample.
        account: the host account; without disk traffic in it, there is no conclusion.
        evidence: receives evidence for the result.
    """
    if found is not Cause.IO or account is None or not available(account.disk_bytes_per_s):
        return found
    pages = pages_per_s(sample)
    if pages < LEAST_PAGES_PER_S:
        return found
    own = value_or(sample.read_bytes_per_s, 0.0) + value_or(sample.write_bytes_per_s, 0.0)
    others = max(0.0, account.disk_bytes_per_s - own)
    if others >= max(own, LEAST_OTHERS_BYTES_PER_S):
        return found
    text = "from storage, which no other work on this host keeps busy: the storage is slow"
    evidence.append(Evidence("pages", pages, LEAST_PAGES_PER_S, "1/s", text))
    return Cause.STORAGE
