"""Removal of secrets from texts that perphd shows: user and password in a URL."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from perphd.domain.status import AgentStatus
from perphd.domain.workload import SliSpec, WorkloadSpec

URL_ACCOUNT: Final = re.compile(r"(?<=://)[^/?#]*@")
"""``user:password@`` in a URL: the authority up to its last ``@`` (RFC 3986, section 3.2)."""


def masked(text: str) -> str:
    """The text with ``***`` in place of user and password of every URL."""
    return URL_ACCOUNT.sub("***@", text)


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """The workload without secrets, for every authorised reader."""
    if spec.sli is None:
        return spec
    options = tuple((key, masked(value) if key == "url" else value) for key, value in spec.sli.options)
    return replace(spec, sli=SliSpec(spec.sli.source, options))


def status_without_secrets(status: AgentStatus) -> AgentStatus:
    """The status without secrets, for every authorised reader."""
    shown = tuple(replace(item, spec=without_secrets(item.spec)) for item in status.workloads)
    return replace(status, workloads=shown)
