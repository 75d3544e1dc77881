"""The report as one HTML file with embedded plots."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from typing import Any

from tools.bench.policies.measure import Result
from tools.bench.policies.report_text import mean, over, present


def plots(runs: Sequence[Result], cells: list[dict[str, Any]]) -> list[str]:
    """PNG images in base64."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    images: list[str] = []

    def keep(figure: Any) -> None:
        data = io.BytesIO()
        figure.tight_layout()
        figure.savefig(data, format="png", dpi=80)
        plt.close(figure)
        images.append(base64.b64encode(data.getvalue()).decode())

    judged = [r for r in runs if not math.isnan(r.of_oracle)]
    if judged:
        figure, axis = plt.subplots(figsize=(8, 5))
        for policy in present(judged):
            mine = [r for r in judged if r.policy == policy]
            missed = 100 * over(mine, lambda r: r.excess_s / max(r.seconds, 1e-9))
            done = 100 * over(mine, lambda r: r.of_oracle)
            axis.scatter(missed, done, s=60)
            axis.annotate(policy, (missed, done), textcoords="offset points", xytext=(6, 4))
        axis.axhline(100, color="grey", linestyle=":")
        axis.set_xlabel("time with a missed target that could be met, %")
        axis.set_ylabel("batch's work over ORACLE's, %")
        axis.grid(alpha=0.3)
        keep(figure)
        families = list(dict.fromkeys(r.family for r in judged))
        figure, axis = plt.subplots(figsize=(10, 4.5))
        names = present(judged)
        width = 0.8 / max(1, len(names))
        for place, policy in enumerate(names):
            values = [
                100 * mean(r.good_of_oracle for r in judged if r.policy == policy and r.family == family)
                for family in families
            ]
            axis.bar([i + place * width for i in range(len(families))], values, width, label=policy)
        axis.set_xticks([i + 0.4 for i in range(len(families))], families)
        axis.set_ylabel("good batch work over ORACLE's, %")
        axis.legend(fontsize=7, ncol=5)
        axis.grid(alpha=0.3, axis="y")
        keep(figure)
    for grid in dict.fromkeys(c["grid"] for c in cells):
        names = list(dict.fromkeys(c["policy"] for c in cells if c["grid"] == grid))
        figure, axes = plt.subplots(1, len(names), figsize=(2.6 * len(names), 3), squeeze=False)
        for axis, policy in zip(axes[0], names, strict=True):
            some = [c for c in cells if c["grid"] == grid and c["policy"] == policy]
            rows, columns = sorted({c["row"] for c in some}), sorted({c["column"] for c in some})
            table = [[math.nan] * len(columns) for _ in rows]
            for c in some:
                table[rows.index(c["row"])][columns.index(c["column"])] = c["value"] or 0.0
            axis.imshow(table, vmin=0, vmax=1.0, origin="lower", cmap="viridis")
            axis.set_title(f"{grid} {policy}", fontsize=8)
            axis.set_xticks(range(len(columns)), [f"{v:.0%}" for v in columns], fontsize=6)
            axis.set_yticks(range(len(rows)), [f"{v:.0%}" for v in rows], fontsize=6)
        keep(figure)
    return images


def page(text: str, images: Sequence[str]) -> str:
    """Convert a subset of Markdown: headings, tables, lists, paragraphs."""
    body: list[str] = []
    table: list[str] = []
    shown = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            body.append(_table(table))
            table = []
        if line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            if level == 2 and len(body) > 3 and not shown:
                body += [f'<img alt="plot" src="data:image/png;base64,{image}">' for image in images]
                shown = True
            body.append(f"<h{level}>{_inline(line.lstrip('# '))}</h{level}>")
        elif line.startswith("- "):
            body.append(f"<li>{_inline(line[2:])}</li>")
        elif line:
            body.append(f"<p>{_inline(line)}</p>")
    if not shown:
        body += [f'<img alt="plot" src="data:image/png;base64,{image}">' for image in images]
    style = (
        "body{font:14px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:2px 8px;text-align:right}td:first-child{text-align:left}"
        "img{max-width:100%}"
    )
    return (
        "<!doctype html><html><head><meta charset='utf-8'><title>Policies</title>"
        f"<style>{style}</style></head><body>" + "\n".join(body) + "</body></html>\n"
    )


def _table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, rest = rows[0], rows[2:]
    cells = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rest)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _inline(text: str) -> str:
    text = html.escape(text)
    for mark, tag in (("**", "b"), ("`", "code"), ("*", "i")):
        pieces = text.split(mark)
        if len(pieces) % 2 == 1:
            text = "".join(
                piece if index % 2 == 0 else f"<{tag}>{piece}</{tag}>" for index, piece in enumerate(pieces)
            )
    return text
