"""Command-line options shared by the programs for Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from perphd.adapters.kubernetes.client import ApiAccess
from perphd.domain.errors import PerphError


def access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the API server's address and credentials; the default is a pod's own access."""
    for option in (
        click.option(
            "--ca-file",
            metavar="FILE",
            help="The API server's certificate authority [default: the system's].",
        ),
        click.option(
            "--token-file", metavar="FILE", help="The account's token; read again for each request."
        ),
        click.option(
            "--api-server", metavar="URL", help="The API server [default: that of this pod's cluster]."
        ),
    ):
        function = option(function)
    return function


def chosen_access(values: Mapping[str, str | None]) -> ApiAccess:
    """The access given by these options.

    Raises:
        PerphError: they contradict each other, or this process does not run in a pod.
    """
    url, token, authority = values["api_server"], values["token_file"], values["ca_file"]
    if url is None:
        if token or authority:
            raise PerphError("--token-file and --ca-file are allowed only with --api-server")
        return ApiAccess.in_cluster()
    if not url.startswith(("https://", "http://127.0.0.1", "http://[::1]", "http://localhost")):
        raise PerphError(
            f"--api-server {url}: must begin with https://; "
            "http:// is allowed only for 127.0.0.1, [::1] and localhost"
        )
    return ApiAccess(url.rstrip("/"), token or "", authority or "")
