"""Makes the wheel: the Python package with its programs and the libraries that they need.

    mkwheel.py --project pyproject.toml --version VERSION --readme README.md --license LICENSE \\
        --bundle bundle_libraries.sh --out memtide.whl --name-out name.txt KIND:DESTINATION:FILE...

KIND: elf (a program or library), or data. The file name of a wheel says its version and platform,
and an output of Bazel has a fixed name: the one to install it under is written to --name-out. The
wheel is byte for byte the same for the same input.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import platform
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can hold


def platform_tag() -> str:
    """The oldest C library that the programs run on is that of the machine that builds them."""
    library, version = platform.libc_ver()
    assert library == "glibc", f"wheels are for glibc, and this machine has {library!r}"
    return f"py3-none-manylinux_{version.replace('.', '_')}_{platform.machine()}"


def metadata(project: dict[str, Any], version: str, readme: str, licenses: list[str]) -> str:
    """The content of METADATA, from [project] of pyproject.toml."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {path}" for path in licenses),
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {dependency}" for dependency in project["dependencies"]),
    ]
    for extra, dependencies in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {each}; extra == "{extra}"' for each in dependencies]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])


def entry_points(project: dict[str, Any]) -> str:
    lines = []
    for group, points in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    return "\n".join([*lines, ""])


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def record(root: Path, own_name: str) -> str:
    """The content of RECORD: each file with its hash and its size in bytes."""
    lines = []
    for name in files_below(root):
        content = (root / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    return "\n".join([*lines, f"{own_name},,", ""])


def zip_tree(root: Path, out: Path) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files_below(root):
            entry = zipfile.ZipInfo(name, FIRST_MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            is_program = (root / name).stat().st_mode & 0o111
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            archive.writestr(entry, (root / name).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for option in ("project", "version", "readme", "license", "bundle", "out", "name-out"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    parser.add_argument("files", nargs="+", metavar="KIND:DESTINATION:FILE")
    options = parser.parse_args()
    project = tomllib.loads(options.project.read_text())["project"]
    version = options.version.read_text().strip()
    name = project["name"]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        elf = []
        for file in options.files:
            kind, destination, source = file.split(":")
            target = root / destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if kind == "elf" else 0o644)
            if kind == "elf":
                elf.append(target)
        info = root / f"{name}-{version}.dist-info"
        licenses = info / "licenses"
        licenses.mkdir(parents=True)
        shutil.copyfile(options.license, licenses / "LICENSE")
        bundle = options.bundle.resolve()
        subprocess.run([bundle, root / f"{name}.libs", licenses, *elf], check=True)
        tag = platform_tag()
        readme = options.readme.read_text()
        (info / "METADATA").write_text(metadata(project, version, readme, files_below(licenses)))
        (info / "entry_points.txt").write_text(entry_points(project))
        (info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: memtide\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        (info / "RECORD").write_text(record(root, f"{info.name}/RECORD"))
        zip_tree(root, options.out)
    options.name_out.write_text(f"{name}-{version}-{tag}.whl\n")


if __name__ == "__main__":
    main()
