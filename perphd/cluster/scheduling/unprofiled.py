"""Ranks nodes for a service whose own interference is unknown. Pure.

    score = balanced - 0.7 sum of services' interference there - 0.3 sum of batch's interference there

Optum's gain of utilisation ranks full nodes first, and relies on the interference that the pod would suffer there. For
a service without that knowledge, the gain is omitted: the score is the balanced score less the interference that the
pod is known to cause (Optum's terms, ``optum``). The policy still decides which nodes are feasible.
"""

from __future__ import annotations

import numpy as np

from perphd.cluster.scheduling.fleet import Fleet, Rows, Scores
from perphd.cluster.scheduling.packing import balanced
from perphd.cluster.scheduling.profile import Pod, PodKind

CAUSED = ("services here", "batch here")
"""The terms of Optum's score that count the interference caused by the pod."""


def is_unprofiled(pod: Pod, scores: Scores) -> bool:
    """True for a service of unknown interference that the policy ranks by utilisation gained."""
    return pod.kind is PodKind.SERVICE and pod.interference is None and set(CAUSED) < set(scores.terms)


def unprofiled(fleet: Fleet, pod: Pod, rows: Rows, scores: Scores) -> Scores:
    """Rescore the candidates as this module describes. ``scores``: scores for which ``is_unprofiled`` holds."""
    by_requests = balanced(fleet, pod, rows)
    terms = {**by_requests.terms, **{name: scores.terms[name] for name in CAUSED}}
    total = np.sum(np.stack(list(terms.values())), axis=0)
    return Scores(f"{scores.policy}, balanced", scores.nodes, rows, total, terms, scores.refusals)
