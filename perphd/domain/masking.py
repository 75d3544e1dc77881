"""What may be shown of what an operator has entrusted to perphd: texts without the account in a URL."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from perphd.domain.status import AgentStatus
from perphd.domain.workload import SliSpec, WorkloadSpec

URL_ACCOUNT: Final = re.compile(r"(?<=://)[^/?#]*@")
"""``user:password@`` of a URL: all of its authority up to the last ``@`` (RFC 3986, section 3.2)."""


def masked(text: str) -> str:
    """The text with ``***`` for the account of every URL in it."""
    return URL_ACCOUNT.sub("***@", text)


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """The workload as everybody who may ask may see it."""
    if spec.sli is None:
        return spec
    options = tuple((key, masked(value) if key == "url" else value) for key, value in spec.sli.options)
    return replace(spec, sli=SliSpec(spec.sli.source, options))


def status_without_secrets(status: AgentStatus) -> AgentStatus:
    """The status as everybody who may ask may see it."""
    shown = tuple(replace(item, spec=without_secrets(item.spec)) for item in status.workloads)
    return replace(status, workloads=shown)
