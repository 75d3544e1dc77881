"""perphctl model evaluate and merge of exported models: what several hosts have learned of one application."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perphd.control.cli_model_files import CONTEST_HEADS, NOT_WRITTEN, contest_row, read_as
from perphd.control.table import Part, table, text
from perphd.predictor.persist import ModelFile, ModelFileError, from_text, to_text


def merged(
    target: str, files: Sequence[str], name: str | None
) -> tuple[dict[str, Any], Callable[[], list[Part]], bool]:
    """Merge, and write TARGET if the champion check is passed: data, what is shown, and whether it was.

    Raises:
        PerphError: a file cannot be read or is no model; they cannot be merged.
    """
    from perphd.agent.profile_progress import write_atomically
    from perphd.predictor.live_merge import merge_models

    made = merge_models([read_model(file) for file in files])
    result = made.file
    if name is not None:
        result = replace(result, provenance=replace(result.provenance, lra=name))
    if made.accepted:
        write_atomically(Path(target), to_text(result))
    data = {
        "accepted": made.accepted,
        "file": target if made.accepted else None,
        "contests": [
            {"channel": c.channel} | asdict(c.result) | {"held": c.result.held} for c in made.contests
        ],
    }
    rows = [(c.channel, *contest_row(c.result)) for c in made.contests]
    said = f"written: {target}" if made.accepted else NOT_WRITTEN
    heads = ("CHANNEL", *CONTEST_HEADS)
    return data, lambda: [table("", heads, rows, right=(2, 4, 5)), text(said)], made.accepted


def evaluated(file: str, others: Sequence[str]) -> tuple[dict[str, Any], Callable[[], list[Part]]]:
    """How good a model was of late, and is on what others remember: data and what is shown.

    Raises:
        PerphError: a file cannot be read or is no model; one has learned nothing yet, or remembers too little.
    """
    from perphd.predictor.live_merge import judge

    model = read_model(file)
    source, work = model.provenance, model.state.work
    judged = [(other, judge(model, read_model(other))) for other in others]
    own: dict[str, Any] = {"samples": model.state.samples, "cells": len(model.state.work.cells)}
    said = f"{source.lra}: learned on {source.host} from {model.state.samples} samples"
    if work.staged is not None:
        own |= {"noise_sd": math.sqrt(work.staged.noise_var), "drift_alarms": work.staged.alarms}
        said += (
            f"; samples scatter by {math.sqrt(work.staged.noise_var):.1%}, {work.staged.alarms} changes found"
        )
    elif work.boosted is not None:
        own |= {"mean_error": work.boosted.mape, "drift_alarms": work.boosted.alarms}
        said += f"; one step ahead its trees were off by {work.boosted.mape:.1%} of late"
    else:
        said += "; it holds cells alone"
    data = {
        "file": file,
        "provenance": asdict(source),
        "own": own,
        "metrics": [{"on": o} | asdict(m) for o, m in judged],
    }
    heads = ("JUDGED ON", "SAMPLES", "R2", "LOG-RMSE", "MEAN ERROR")
    rows = [(o, str(m.rows), f"{m.r2:.4f}", f"{m.log_rmse:.4f}", f"{m.mape:.1%}") for o, m in judged]

    def parts() -> list[Part]:
        return [text(said), *([table("", heads, rows, right=(1, 2, 3, 4))] if rows else [])]

    return data, parts


def read_model(file: str) -> ModelFile:
    """An exported model.

    Raises:
        PerphError: it cannot be read, or is none.
    """
    return read_as(file, from_text, ModelFileError)
