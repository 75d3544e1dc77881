"""What a restore did, in words and a table."""

from __future__ import annotations

from perphd.control.table import Part, Styled, table, text
from perphd.isolation.restore_report import RestoreReport


def restore_parts(report: RestoreReport) -> list[Part]:
    """``perphctl restore``: a summary, then every file that was not simply put back."""
    counts = (
        (len(report.restored), "put back"),
        (len(report.already), "as they were already"),
        (len(report.gone), "gone with their cgroup"),
        (len(report.foreign), "left alone: changed by somebody else since (--force overwrites them)"),
        (len(report.failed), "FAILED"),
    )
    said = ", ".join(f"{number} {what}" for number, what in counts if number)
    parts: list[Part] = [text(f"Files: {said}." if said else "Nothing had to be put back.")]
    rows = [
        (Styled(what, style), item.path, item.original, item.now or item.found, item.note)
        for what, style, items in (
            ("failed", "bold red", report.failed),
            ("left alone", "yellow", report.foreign),
            ("put back", "green", report.restored),
        )
        for item in items
    ]
    if rows:
        parts.append(table("", ("RESULT", "FILE", "ORIGINAL", "NOW", "NOTE"), rows))
    if report.notes:
        parts.append(text(*report.notes))
    return parts
