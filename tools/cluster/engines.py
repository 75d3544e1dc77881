"""Builds the control plane and kubelet from pinned Go modules: ``python -m tools.cluster.engines``.

The programs go into the cache, named by their pins. Existing programs are not built again. The first time, Go fetches
0.6 GB, and its own cache grows by 3.2 GB. Arguments name the programs; without one, all are built.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAMS: Final = {"kubelab": ".", "kubelet": "./kubelet"}
"""Names of the programs and their packages in the module ``kubelab``."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perphd-cluster"
_HERE: Final = Path(__file__).parent / "kubelab"


class NoProgram(Exception):
    """There is no engine to start; the text names the missing program."""


def cached(name: str) -> Path:
    """Path of a built program; the name changes with its pins and its source."""
    digest = hashlib.sha256()
    for part in ("go.mod", "go.sum", f"{PROGRAMS[name]}/main.go"):
        digest.update((_HERE / part).read_bytes())
    return CACHE / f"{name}-{digest.hexdigest()[:16]}"


def build(name: str) -> Path:
    """The program, built unless it is there: 20 minutes of CPU time the first time.

    Raises:
        NoProgram: Go is missing, or the build fails.
    """
    made = cached(name)
    if made.is_file():
        return made
    if shutil.which("go") is None:
        raise NoProgram(f"no {name}: Go, of the version that {_HERE / 'go.mod'} names, would build it")
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_name(f"{made.name}.{os.getpid()}")
    version = kubernetes_version()
    major, minor, _ = version.split(".")
    says = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [f"-X {package}.{key}={value}" for package in packages for key, value in says.items()]
    command = [
        "go",
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        " ".join(["-s", "-w", *flags]),
        "-o",
        str(part),
    ]
    try:
        subprocess.run(
            [*command, PROGRAMS[name]], cwd=_HERE, env={**os.environ, "CGO_ENABLED": "0"}, check=True
        )
    except subprocess.CalledProcessError as exc:
        part.unlink(missing_ok=True)
        raise NoProgram(f"no {name}: go build in {_HERE} ended with status {exc.returncode}") from exc
    part.rename(made)
    return made


def kubernetes_version() -> str:
    """The version of Kubernetes that is pinned, such as ``1.36.3``."""
    found = re.search(
        r"^\s*(?:require )?k8s\.io/kubernetes v(\d+\.\d+\.\d+)$", (_HERE / "go.mod").read_text(), re.M
    )
    if found is None:
        raise NoProgram(f"{_HERE / 'go.mod'} pins no k8s.io/kubernetes")
    return found[1]


if __name__ == "__main__":
    for each in sys.argv[1:] or PROGRAMS:
        try:
            print(build(each))
        except NoProgram as exc:
            sys.exit(str(exc))
