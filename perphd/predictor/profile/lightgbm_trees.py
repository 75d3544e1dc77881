"""Converts LightGBM's trees to ``ogbrt.Trees``, so that a model trained offline can learn online.

Both compare ``x <= threshold`` in double precision and sum leaf values that include the learning rate, so predictions
agree to rounding. Missing values go where LightGBM sends them: with missing type ``None`` (training rows without NaN)
it treats NaN as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perphd.predictor.ogbrt.trees import InvalidModel, Trees


def from_lightgbm(booster: Any, features: Sequence[str], monotone: Sequence[int], rounds: int = -1) -> Trees:
    """Convert the booster's first ``rounds`` trees (-1: all).

    Raises:
        InvalidModel: it uses features without a portable form: categories, linear leaves, zeros as missing values.
    """
    dump = booster.dump_model(num_iteration=rounds)
    node_start, leaf_start = [0], [0]
    nodes: list[_Node] = []
    leaves: list[float] = []
    for tree in dump["tree_info"]:
        own = _Tree()
        own.add(tree["tree_structure"])
        nodes += own.nodes
        leaves += own.leaves
        node_start.append(len(nodes))
        leaf_start.append(len(leaves))
    return Trees(
        tuple(features),
        tuple(monotone),
        0.0,  # the first tree's leaves include the mean
        np.array(node_start, dtype=np.int32),
        np.array(leaf_start, dtype=np.int32),
        np.array([node.feature for node in nodes], dtype=np.int32),
        np.array([node.threshold for node in nodes], dtype=np.float64),
        np.array([node.missing_left for node in nodes], dtype=np.bool_),
        np.array([node.left for node in nodes], dtype=np.int32),
        np.array([node.right for node in nodes], dtype=np.int32),
        np.array(leaves, dtype=np.float64),
    ).validate()


class _Node:
    __slots__ = ("feature", "left", "missing_left", "right", "threshold")

    def __init__(self, feature: int, threshold: float, missing_left: bool) -> None:
        self.feature, self.threshold, self.missing_left = feature, threshold, missing_left
        self.left = self.right = 0


class _Tree:
    """One tree; nodes in preorder, leaves from left to right."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.leaves: list[float] = []

    def add(self, item: Mapping[str, Any]) -> int:
        """Add a node and its descendants; returns its index, or ``~leaf``."""
        if "split_index" not in item:
            if "leaf_coeff" in item:
                raise InvalidModel("the model is refused: its leaves are linear")
            self.leaves.append(float(item["leaf_value"]))
            return ~(len(self.leaves) - 1)
        if item["decision_type"] != "<=":
            raise InvalidModel(f"the model is refused: it has a split by {item['decision_type']!r}")
        threshold, missing = float(item["threshold"]), item["missing_type"]
        if missing not in ("None", "NaN"):
            raise InvalidModel(f"the model is refused: it treats {missing} as a missing value")
        missing_left = bool(item["default_left"]) if missing == "NaN" else threshold >= 0.0
        node = _Node(int(item["split_feature"]), threshold, missing_left)
        number = len(self.nodes)
        self.nodes.append(node)
        node.left = self.add(item["left_child"])
        node.right = self.add(item["right_child"])
        return number
