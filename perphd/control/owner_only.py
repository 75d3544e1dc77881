"""What may not be asked for by the admin group, but by root alone: what makes the daemon run or read a file.

The daemon acts with root's rights, and what comes of it is shown to everybody who may ask: an SLI's readings and the
reasons for missing ones, an application's version. Whoever may change workloads could so see what he may not read.
"""

from __future__ import annotations

from typing import Final

from perphd.control.errors import ApiError, Code
from perphd.domain.workload import WorkloadSpec

_SOURCES: Final = frozenset({"command", "file"})
_SLI_OPTIONS: Final = frozenset({"password_file"})


def check_harmless(spec: WorkloadSpec) -> None:
    """Refuse a workload that only root may add.

    Raises:
        ApiError: which part of it that is.
    """
    if spec.version_from.startswith("file:"):
        raise _refusal("a version_from with a file", "lra.version_from", '"auto", "none" or "label:KEY"')
    if spec.sli is None:
        return
    if spec.sli.source in _SOURCES:
        raise _refusal(f"an SLI of source {spec.sli.source!r}", "lra.sli.source")
    for key, _ in spec.sli.options:
        if key in _SLI_OPTIONS:
            raise _refusal(f"an SLI with {key}", f"lra.sli.{key}")


def _refusal(what: str, key: str, allowed: str = "") -> ApiError:
    text = f"{what} may only be added by root, or in a file of /etc/perphd: it acts with root's rights"
    return ApiError(Code.NOT_PERMITTED, text, key, allowed)
