"""Allocation rules for comparison with the flexible rule (Pace 2018, 3.1.2 and 3.3.3).

rigid      a reservation: the next application starts when all its components fit, as with YARN, Mesos and Kubernetes
malleable  first fit: applications in service keep what they have and grow first, the oldest before the others; the next
           one starts when its core fits into the rest, with as many elastic components as do, and else blocks
"""

from __future__ import annotations

from dataclasses import replace

from perphd.batch.elastic import ElasticShares


def rigid(shares: ElasticShares) -> ElasticShares:
    """Shares after every application that fits as a whole was admitted, in order."""
    serving, waiting, free = list(shares.serving), list(shares.waiting), shares.free
    while waiting and waiting[0].core + waiting[0].elastic <= free:
        job = waiting.pop(0)
        free -= job.core + job.elastic
        serving.append(replace(job, granted=job.elastic))
    return replace(shares, serving=tuple(serving), waiting=tuple(waiting))


def malleable(shares: ElasticShares) -> ElasticShares:
    """Shares after applications in service have grown, oldest first, and others that then fit were admitted."""
    free, serving, waiting = shares.free, [], list(shares.waiting)
    for job in shares.serving:
        more = min(job.elastic - job.granted, free) // job.unit * job.unit
        serving.append(replace(job, granted=job.granted + more))
        free -= more
    while waiting and waiting[0].core <= free:
        job = waiting.pop(0)
        granted = min(job.elastic, free - job.core) // job.unit * job.unit
        serving.append(replace(job, granted=granted))
        free -= job.core + granted
    return replace(shares, serving=tuple(serving), waiting=tuple(waiting))
