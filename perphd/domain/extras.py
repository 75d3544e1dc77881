"""How to get the Python packages that only some commands need, and that an installation may lack."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

PACKAGED: Final = "/usr/lib/perphd"
"""Where the Debian package has perphd: no pip reaches it, and nothing beside it is seen."""


def how_to_get(extra: str, here: str = __file__) -> str:
    """What to do for this extra of pyproject.toml, as the end of a sentence; ``here``: a file of perphd's."""
    command = f"pip install 'perphd[{extra}]'"
    if PurePath(here).is_relative_to(PACKAGED):
        return f"not in the Debian package; use a checkout's virtual environment (make venv), and in it {command}"
    return command
