"""Installation hints for optional Python packages that only some commands need."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

PACKAGED: Final = "/usr/lib/perphd"
"""Installation folder of the Debian package, to which pip does not install and which sees no packages elsewhere."""


EXTRA_FOLDER: Final = "/usr/local/lib/perphd"
"""Folder where commands of the Debian package look for additional libraries."""


PINNED: Final = {"pyarrow": "'pyarrow<25'"}
"""Requirements for installing beside the distribution's libraries: newer pyarrow refuses numpy 1."""


def how_to_get_beside(package: str, extra: str, here: str = __file__) -> str:
    """Installation hint for a library that a command also looks for in ``EXTRA_FOLDER``.

    ``here``: a file of perphd, whose path shows whether this is the Debian package.
    """
    if PurePath(here).is_relative_to(PACKAGED):
        wanted = PINNED.get(package, package)
        return f"sudo apt install python3-pip && sudo pip install --upgrade --target {EXTRA_FOLDER} {wanted}"
    return how_to_get(extra, here)


def how_to_get(extra: str, here: str = __file__) -> str:
    """Installation hint for this extra of pyproject.toml, as the end of a sentence.

    ``here``: a file of perphd, whose path shows whether this is the Debian package.
    """
    command = f"pip install 'perphd[{extra}]'"
    if PurePath(here).is_relative_to(PACKAGED):
        return f"not in the Debian package; use a checkout's virtual environment (make venv), and in it {command}"
    return command
