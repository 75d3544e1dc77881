"""Recordings of decisions as JSON lines: the host and the policy first, then one line a round.

What the policy saw, what it asked its models, what it answered: enough to let a policy decide again, bit for bit
(``tools/replay``). Nothing is pickled; a recording made by one version is read by another as long as the domain's
fields are known. The policy's own memory at the start is in the head, so that a recording may begin at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from perphd.agent.rounds import Question, Round
from perphd.control.tagged import encode_tagged
from perphd.control.wire import encode
from perphd.domain.masking import without_secrets
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView

FORMAT: Final = 2


def head(first: Snapshot, policy: str, settings: object = None) -> dict[str, Any]:
    """The first line. ``settings``: the policy's, if it has any.

    Raises:
        TaggedError: the policy remembers what cannot be written.
    """
    return {
        "format": FORMAT,
        "policy": policy,
        "settings": encode(settings),
        "topology": encode(first.host.topology),
        "memory": encode_tagged(first.memory),
    }


def round_out(item: Round) -> dict[str, Any]:
    """One further line."""
    answers = {name: answers_out(asked) for name, asked in item.asked.items()}
    return {"snapshot": snapshot_out(item.snapshot), "answers": answers, "target": target_out(item.target)}


def answers_out(asked: tuple[Question, ...]) -> dict[str, Any]:
    """Answers by question."""
    return {question_key(q.what, *q.parts): encode(q.answer) for q in asked}


def question_key(what: str, *parts: object) -> str:
    """The same text for the same question."""
    return json.dumps([what, *(encode(part) for part in parts)], separators=(",", ":"))


def target_out(target: TargetState) -> dict[str, Any]:
    """Everything of a target state but the memory, which is the policy's own."""
    settings: Mapping[str, object] = dict(sorted(target.settings.items()))
    return {
        "settings": encode(settings),
        "decisions": encode(target.decisions),
        "outcomes": encode(target.outcomes),
    }


def snapshot_out(snapshot: Snapshot) -> dict[str, Any]:
    """All but the topology, which is in the head, the models, whose answers stand beside it, and the memory.

    Nor the accounts in workloads' URLs: no policy asks for them, and whoever may ask for a recording may not know them.
    """
    host = {f.name: encode(getattr(snapshot.host, f.name)) for f in fields(HostView) if f.name != "topology"}
    views = [
        {f.name: encode(getattr(view, f.name)) for f in fields(WorkloadView) if f.name != "model"}
        for view in (replace(view, spec=without_secrets(view.spec)) for view in snapshot.workloads)
    ]
    return {
        "tick": snapshot.tick, "at_s": snapshot.at_s, "period_s": snapshot.period_s, "host": host,
        "workloads": views,
    }  # fmt: skip


def line(value: Mapping[str, Any]) -> str:
    """As it stands in the file."""
    return json.dumps(value, separators=(",", ":")) + "\n"
