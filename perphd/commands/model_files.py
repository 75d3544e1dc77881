"""perphctl model evaluate and model merge: profiles and exported models as files, without the daemon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perphd.commands.base import EXIT_FAILED, Out, command
from perphd.control.table import Part, table, text
from perphd.domain.errors import PerphError

if TYPE_CHECKING:
    from perphd.control.table import Part
    from perphd.predictor.persist import ModelFile
    from perphd.predictor.profile import Metrics, Profile
    from perphd.predictor.profile.merge import Contest


T = TypeVar("T")


def add_model_file_commands(model: click.Group) -> None:
    """Add the commands to ``perphctl model``."""

    @command(model)
    @click.argument("file")
    @click.option(
        "--on", "others", multiple=True, metavar="FILE", help="Also evaluate it on the samples of this file."
    )
    def evaluate(out: Out, file: str, others: tuple[str, ...]) -> None:
        """Evaluate a profile or a model.

        FILE was saved by "perphd profile", or is a model that "perphctl model export" wrote. The errors of a profile
        are those on samples that it was not trained on (10-fold cross-validation), those of a model are the errors of
        its predictions one step ahead; --on evaluates it on the samples of another file of its kind, for example from
        another host.
        """
        if is_model(file):
            out.show(*_evaluated_live(file, others))
            return
        from perphd.predictor.profile.merge import evaluate as judge

        profile = read_profile(file)
        judged = [("held out, 10-fold", profile.metrics)]
        for other in others:
            on = read_profile(other)
            judged.append((f"on {other}", judge(profile, on.x, on.y, on.features)))
        data = {
            "file": file,
            "origin": asdict(profile.origin),
            "signed_off": profile.is_signed_off,
            "refusal": profile.metrics.refusal,
            "metrics": [{"on": where} | asdict(metrics) for where, metrics in judged],
        }
        out.show(data, lambda: _evaluated(file, profile, judged))

    @command(model)
    @click.argument("target")
    @click.argument("files", nargs=-1, required=True)
    @click.option("--name", metavar="APP", help="Application of the result [default: that of the first].")
    @click.option("--seed", type=int, default=0, show_default=True, help="Seed of training.")
    def merge(out: Out, target: str, files: tuple[str, ...], name: str | None, seed: int) -> None:
        """Merge several profiles, or several models, into one.

        Merges FILES, from several hosts, into TARGET. TARGET is written only if, on held-out samples of each file, the
        merged model's error exceeds that of the best individual model by at most 5 % plus sampling error. The result
        is not used automatically: put a profile into the folder where perphd searches for the application's profile;
        load a model (from "perphctl model export") with "perphctl model import" on each host that should have it.
        """
        if is_model(files[0]):
            told, shown, accepted = _merged(target, files, name)
            out.show(told, shown)
            if not accepted:
                raise SystemExit(EXIT_FAILED)
            return
        from perphd.agent.profiling.progress import write_atomically
        from perphd.predictor.profile import to_text
        from perphd.predictor.profile.merge import merge as make
        from perphd.predictor.profile.worker import train_apart

        profiles = [read_profile(file) for file in files]
        merged = make(profiles, name or profiles[0].origin.app, seed=seed, training=train_apart)
        if merged.accepted:
            write_atomically(Path(target), to_text(merged.profile))
        data = {
            "accepted": merged.accepted,
            "file": target if merged.accepted else None,
            "contests": [asdict(contest) | {"held": contest.held} for contest in merged.contests],
        }

        def parts() -> list[Part]:
            from perphd.control.table import table, text

            rows = [contest_row(c) for c in merged.contests]
            said = f"written: {target}" if merged.accepted else NOT_WRITTEN
            return [table("", CONTEST_HEADS, rows, right=(1, 3, 4)), text(said)]

        out.show(data, parts)
        if not merged.accepted:
            raise SystemExit(EXIT_FAILED)


CONTEST_HEADS = ("HELD OUT OF", "ROWS", "CHAMPION", "ITS LOG-RMSE", "MERGED", "")
NOT_WRITTEN = "not written: the merged model is worse than a champion"


def contest_row(contest: Contest) -> tuple[str, ...]:
    """A row under ``CONTEST_HEADS``: the comparison on one host's samples."""
    return (
        contest.host, str(contest.rows), contest.champion, f"{contest.champion_log_rmse:.4f}",
        f"{contest.merged_log_rmse:.4f}", "held" if contest.held else "worse",
    )  # fmt: skip


def is_model(file: str) -> bool:
    """True if the file claims to be an exported model; False if it does not, or cannot be read."""
    from perphd.predictor.persist import FORMAT

    try:
        with open(file, "rb") as source:
            return f'"{FORMAT}"'.encode() in source.read(64)
    except OSError:
        return False  # the later read reports the reason


def read_profile(file: str) -> Profile:
    """A profile from a file.

    Raises:
        PerphError: it cannot be read, or is not a profile.
    """
    from perphd.predictor.profile import FileError, from_text

    return read_as(file, from_text, FileError)


def read_as(file: str, parse: Callable[[bytes], T], refused: type[Exception]) -> T:
    """Read and parse a file.

    Raises:
        PerphError: it cannot be read, or ``parse`` raised ``refused``.
    """
    try:
        return parse(Path(file).read_bytes())
    except OSError as exc:
        raise PerphError(f"{file}: cannot be read: {exc.strerror}") from exc
    except refused as exc:
        raise PerphError(f"{file}: {exc}") from exc


def profile_parts(profile: Profile) -> list[Part]:
    """The output of ``perphctl model show FILE``: the profile's origin, and its partial dependence."""
    from perphd.commands.curves import of_profile, parts

    return [_origin(profile), *parts(of_profile(profile))]


def _evaluated(file: str, profile: Profile, judged: list[tuple[str, Metrics]]) -> list[Part]:
    from perphd.control.table import table, text

    heads = ("JUDGED", "SAMPLES", "R2", "RMSE", "MAE", "MEDIAN ERROR", "MEAN ERROR")
    rows: list[tuple[Any, ...]] = [
        (
            where,
            str(m.rows),
            f"{m.r2:.4f}",
            f"{m.rmse:.4f}",
            f"{m.mae:.4f}",
            f"{m.median_error:.4f}",
            f"{m.mape:.1%}",
        )
        for where, m in judged
    ]
    refusal = profile.metrics.refusal
    said = f"not signed off: {refusal}" if refusal else "signed off: good enough to start from"
    return [_origin(profile), table("", heads, rows, right=(1, 2, 3, 4, 5, 6)), text(f"{file}: {said}")]


def _origin(profile: Profile) -> Part:
    from perphd.control.table import text

    o = profile.origin
    lines = [
        f"{o.app}: {o.measured} of {o.grid_cells} allocations on {', '.join(o.hosts)}; work: {o.work_source}; "
        f"{o.engine}, {o.rounds} trees"
    ]
    lines += [f"not explored: {why}" for why in o.not_explored]
    return text(*lines, *([o.note] if o.note else []))


def _merged(
    target: str, files: Sequence[str], name: str | None
) -> tuple[dict[str, Any], Callable[[], list[Part]], bool]:
    """Merge, and write TARGET if the champion check passes. Returns data, output, and whether it passed.

    Raises:
        PerphError: a file cannot be read or is not a model, or they cannot be merged.
    """
    from perphd.agent.profiling.progress import write_atomically
    from perphd.predictor.live_merge import merge_models
    from perphd.predictor.persist import to_text

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


def _evaluated_live(file: str, others: Sequence[str]) -> tuple[dict[str, Any], Callable[[], list[Part]]]:
    """Recent errors of a model, and its errors on other models' samples: data and output.

    Raises:
        PerphError: a file cannot be read or is not a model; or a model has too few samples.
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
        said += f"; recent error of its trees one step ahead: {work.boosted.mape:.1%}"
    else:
        said += "; it contains cells only"
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
        PerphError: it cannot be read, or is not a model.
    """
    from perphd.predictor.persist import ModelFileError, from_text

    return read_as(file, from_text, ModelFileError)
