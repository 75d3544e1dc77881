"""Table ``[model]``: how what perphd believes about LRAs is learned."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.agent.config_schema import setting
from perphd.domain.learning import DEFAULT_LEARNER, GATE_MAPE, Learner


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Table ``[model]``."""

    learner: Learner = setting(
        DEFAULT_LEARNER,
        "what corrects the prior: staged, one level for all places and stages that keep their signs; ogbrt, online "
        "boosted trees below a local correction; residual, the local correction alone",
    )
    rebuild: bool = setting(
        True,
        "with ogbrt: trees are rebuilt now and then, in a niced process of half a second; false: what was learned only "
        "moves their leaves",
        expert=True,
    )
    gate_mape_pct: float = setting(
        100.0 * GATE_MAPE,
        "mean error at the current allocation from which a model only advises: what has not been measured is then "
        "believed as little as before anything was learned; 0: never",
        low=0.0,
        high=1000.0,
        unit="%",
        expert=True,
    )
