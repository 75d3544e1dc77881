"""Placement policies: pure functions of the nodes' published profiles and of one pod.

``fleet`` keeps the published profiles in columns, one row per node. Every policy scores all candidate rows at once and
returns ``Scores``, which name the terms of each score. ``placement`` samples candidates, falls back when profiles are
stale, and resolves conflicts between schedulers.
"""
