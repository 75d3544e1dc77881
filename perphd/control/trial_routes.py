"""The part of the control API about trials: the running or last one, start, stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perphd.agent.config_schema import show
from perphd.agent.trials import request_of
from perphd.control.access import Peer
from perphd.control.errors import ApiError, Code
from perphd.control.port import AgentPort
from perphd.control.wire import encode

KEYS: Final = ("hours", "block_s", "washout_s", "bound_pct", "seed")
"""What a request to start may say; ``hours`` it must."""


def trial_answer(agent: AgentPort) -> dict[str, Any]:
    """GET /v1/trial: the record of the running or last trial, and where the running one is."""
    record, status = agent.trial(), agent.status().trial
    return {"record": encode(record), "running": encode(status)}


def start_trial(agent: AgentPort, body: Mapping[str, Any], peer: Peer) -> dict[str, Any]:
    """POST /v1/trial: begin one. Raises ApiError for values that are refused, ConfigError where none can begin."""
    if body.get("hours") is None:
        raise ApiError(Code.REFUSED, "the length is missing", "hours", "a number of hours")
    for key, value in body.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ApiError(Code.REFUSED, f"{show(value)} is not a number", key, "a number")
    return {"record": encode(agent.start_trial(request_of(body), peer.actor()))}


def stop_trial(agent: AgentPort, peer: Peer) -> dict[str, Any]:
    """DELETE /v1/trial: end the running one. Raises ConfigError if none runs."""
    return {"record": encode(agent.stop_trial(peer.actor()))}
