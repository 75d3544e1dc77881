"""A self-contained HTML page: text, tables, inline charts. No scripts, no external requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from perphd import __version__
from perphd.control.table import Part, Table

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#667085;--line:#d9dee5;--paper:#fff;--box:#f6f8fa;
--observe:#8a94a6;--enforce:#2166c2;--good:#1a7f4b;--bad:#c0392b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#9aa4b2;--line:#39414d;--paper:#14181d;--box:#1d232b;
--observe:#97a3b6;--enforce:#6aa5f2;--good:#4cc38a;--bad:#ff7b6b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:860px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin-top:2rem}
.verdict{font-size:1.1rem;background:var(--box);border-left:4px solid var(--enforce);padding:.8rem 1rem;margin:1rem 0}
.dim,.none,footer{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid var(--line)}th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .tick,svg .label{fill:var(--dim);font-size:11px}
.grid{stroke:var(--line)}.zero{stroke:var(--dim);stroke-dasharray:3 3}
.whisker{stroke-width:4;opacity:.5}line.good,line.bad,line.neutral{stroke:currentColor}
.good{color:var(--good)}.bad{color:var(--bad)}.neutral{color:var(--dim)}
circle.good,circle.bad,circle.neutral{fill:currentColor}
path{fill:none;stroke-width:1.6}path.observe{stroke:var(--observe)}path.enforce{stroke:var(--enforce)}
path.bad{stroke:var(--bad)}circle.observe{fill:var(--observe)}circle.enforce{fill:var(--enforce)}
polygon.enforce{fill:var(--enforce);opacity:.18}.bar{fill:var(--enforce)}
.legend{font-size:.85rem;color:var(--dim)}.key{margin-left:1rem}.key::before{content:"\\25CF  "}
.key.observe{color:var(--observe)}.key.enforce{color:var(--enforce)}.key.bad{color:var(--bad)}
footer{font-size:.8rem;margin-top:3rem;border-top:1px solid var(--line)}
"""


def page(title: str, verdict: str, blocks: Iterable[str]) -> str:
    """The whole document; ``blocks`` contain HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(verdict)}</p>'
        f"{''.join(blocks)}<footer>perphd {escape(__version__)}</footer></body></html>\n"
    )


def heading(text: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraphs(texts: Sequence[str]) -> str:
    """One paragraph per text."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def tables(parts: Iterable[Part]) -> str:
    """Tables and texts made for a terminal, as HTML."""
    return "".join(
        _table(part) if isinstance(part, Table) else paragraphs([str(line) for line in part.lines])
        for part in parts
    )


def _table(part: Table) -> str:
    def row(cells: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in part.right else ''}>{escape(str(cell))}</{tag}>"
            for i, cell in enumerate(cells)
        )

    head = f"<tr>{row(part.columns, 'th')}</tr>"
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in part.rows)
    title = heading(part.title) if part.title else ""
    return f'{title}<div class="wide"><table>{head}{body}</table></div>'
