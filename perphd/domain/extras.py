"""How to get the Python packages that only some commands need, and that an installation may lack."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

PACKAGED: Final = "/usr/lib/perphd"
"""Where the Debian package has perphd: no pip reaches it, and nothing beside it is seen."""


EXTRA_FOLDER: Final = "/usr/local/lib/perphd"
"""Where a library may be put that a command of the Debian package looks for."""


PINNED: Final = {"pyarrow": "'pyarrow<25'"}
"""The requirement to install where libraries beside it are the distribution's: newer pyarrow refuses numpy 1."""


def how_to_get_beside(package: str, extra: str, here: str = __file__) -> str:
    """The same for one library that a command also finds in ``EXTRA_FOLDER``."""
    if PurePath(here).is_relative_to(PACKAGED):
        wanted = PINNED.get(package, package)
        return f"sudo apt install python3-pip && sudo pip install --upgrade --target {EXTRA_FOLDER} {wanted}"
    return how_to_get(extra, here)


def how_to_get(extra: str, here: str = __file__) -> str:
    """What to do for this extra of pyproject.toml, as the end of a sentence; ``here``: a file of perphd's."""
    command = f"pip install 'perphd[{extra}]'"
    if PurePath(here).is_relative_to(PACKAGED):
        return f"not in the Debian package; use a checkout's virtual environment (make venv), and in it {command}"
    return command
