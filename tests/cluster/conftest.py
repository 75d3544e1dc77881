"""A real API server, scheduler and nodes without kubelets; all tests skip where there is no program for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perphd.adapters.kubernetes.client import ApiAccess
from tools.cluster.control_plane import ControlPlane, program
from tools.cluster.engines import NoProgram

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane with the CRD and the accounts that perphd ships."""
    try:
        program()
    except NoProgram as exc:
        pytest.skip(str(exc))
    control = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        control.start()
        for name in ("crd", "rbac", "rbac-bind", "rbac-models"):
            control.kubectl("apply", "-f", str(MANIFESTS / f"{name}.yaml"))
        control.kubectl("wait", "--for=condition=Established", "crd/nodeprofiles.perphd.io", "--timeout=60s")
        yield control
    finally:
        control.stop()


@pytest.fixture(scope="session")
def admin(plane: ControlPlane) -> ApiAccess:
    """Access of an administrator."""
    return ApiAccess(plane.url, str(plane.token_file), str(plane.ca_file))
