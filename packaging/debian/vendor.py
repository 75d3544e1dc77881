"""vendor.py FOLDER LIST: take out of a folder of Python packages what no program there needs; list the packages.

Taken out: packages and parts that nothing here imports, tests, type stubs, highlighters, headers, static
libraries, scripts, and what pip notes about this very installation (paths and times of the build would make
each build another package). Compiled modules are stripped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path

UNUSED = (
    "bin",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/_pyinstaller",
    "numpy/distutils",
    "numpy/f2py",
    "numpy/random/lib",
)
# Packages that others name as theirs for what nobody does here: rendering Markdown, and time zones where the system
# has none.
UNUSED_PACKAGES = ("linkify_it", "markdown_it", "mdit_py_plugins", "mdurl", "tzdata")
UNUSED_NAMES = ("_*_tests.*.so", "*.a", "*.c", "*.h", "*.pxd", "*.pyi", "*.pyx", "__pycache__")
# Of the highlighters of five hundred languages none is asked for; rich looks at the table of them.
PYGMENTS_KEPT = ("__init__.py", "_mapping.py", "python.py", "special.py")
BUILD_NOTES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


def main() -> None:
    """Clean FOLDER and write LIST."""
    folder, listed = Path(sys.argv[1]), Path(sys.argv[2])
    for name in UNUSED_PACKAGES:
        for path in filter(Path.exists, (folder / name, *folder.glob(f"{name}*.dist-info"))):
            shutil.rmtree(path)
    for name in UNUSED:
        shutil.rmtree(folder / name, ignore_errors=True)
    for pattern in UNUSED_NAMES:
        for path in folder.rglob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / "pygments/lexers").glob("*"):
        if path.name not in PYGMENTS_KEPT:
            path.unlink()
    for path in sorted(folder.rglob("tests"), reverse=True):
        if path.is_dir() and (folder / "perphd") not in path.parents:
            shutil.rmtree(path)
    for info in folder.glob("*.dist-info"):
        for name in BUILD_NOTES:
            (info / name).unlink(missing_ok=True)
        shutil.rmtree(info / "sboms", ignore_errors=True)  # of a wheel's build; vendored.txt lists what is here
    for path in (path for path in folder.rglob("*") if path.is_file()):
        path.chmod(0o644)
        if path.suffix == ".py" and (text := path.read_bytes()).startswith(b"#!"):
            path.write_bytes(b"#" + text[text.index(b"\n") :])  # nothing here is a program
    # Not those that bring libraries of their own: their segments were moved, and strip breaks them.
    bundled = {path.name.removesuffix(".libs") for path in folder.glob("*.libs")}
    for module in folder.rglob("*.so"):
        if module.relative_to(folder).parts[0] not in bundled | {f"{name}.libs" for name in bundled}:
            subprocess.run(["strip", "--strip-unneeded", str(module)], check=True)
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("".join(sorted(_line(info) for info in folder.glob("*.dist-info"))))


def _line(info: Path) -> str:
    fields = HeaderParser().parsestr((info / "METADATA").read_text())
    classified = [
        value.rsplit(" :: ", 1)[1] for value in fields.get_all("Classifier", []) if "License ::" in value
    ]
    licence = fields["License-Expression"] or ", ".join(classified) or (fields["License"] or "see METADATA")
    return f"{fields['Name']} {fields['Version']}: {licence.strip().splitlines()[0]}\n"


if __name__ == "__main__":
    main()
