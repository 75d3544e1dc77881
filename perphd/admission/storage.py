"""Tells storage that has become slow by itself from disks that somebody on this host keeps busy.

Problem: an LRA waits for I/O. If batch keeps the disks busy, batch is the cause. If nobody else on the host moves data,
what serves its I/O is slow: a remote volume, a file server, a worn disk. No CPU, cache or memory of batch's would help.

Approach: others = disk traffic of the host - traffic of the LRA; storage if others < max(own, ``LEAST_OTHERS``).
Gate: pages that really come from storage. A workload whose data are cached does not care how far its storage is.
"""

from __future__ import annotations

from typing import Final

from perphd.domain.decision import Cause, Evidence
from perphd.domain.host_account import HostAccount
from perphd.domain.reading import available, value_or
from perphd.domain.sample import Sample

PAGE_BYTES: Final = 4096.0
LEAST_PAGES_PER_S: Final = 16.0
"""Pages read again, read or written per second from which a workload depends on storage: less is housekeeping."""
LEAST_OTHERS_BYTES_PER_S: Final = 1e6
"""Disk traffic of others that keeps no disk busy: logs and journals of an idle host."""


def pages_per_s(sample: Sample) -> float:
    """Pages that storage has to serve: refaults of the page cache, or block I/O where that is more."""
    moved = value_or(sample.read_bytes_per_s, 0.0) + value_or(sample.write_bytes_per_s, 0.0)
    return max(value_or(sample.refaults_per_s, 0.0), moved / PAGE_BYTES)


def storage(found: Cause, sample: Sample, account: HostAccount | None, evidence: list[Evidence]) -> Cause:
    """STORAGE for an LRA that waits for I/O which nobody else on this host competes for; else ``found``.

    Args:
        found: the contended resource.
        sample: of the LRA.
        account: of the host; without its disk traffic nothing is concluded.
        evidence: what speaks for the answer is added.
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
    text = "from storage, which nobody else on this host keeps busy: it is slow by itself"
    evidence.append(Evidence("pages", pages, LEAST_PAGES_PER_S, "1/s", text))
    return Cause.STORAGE
