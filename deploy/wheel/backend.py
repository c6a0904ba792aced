"""`pip install .` in a checkout (PEP 517): the wheel is the one that Bazel makes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = "source tools/lib.sh && bazel_build -c opt //deploy:wheel >&2 && bazel_bin -c opt"


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None
) -> str:
    """Puts the wheel into the folder; returns its file name."""
    done = subprocess.run(
        ["bash", "-c", BUILD], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    built = Path(done.stdout.strip()) / "deploy"
    name = (built / "wheel_name.txt").read_text().strip()
    shutil.copyfile(built / "memtide.whl", Path(wheel_directory) / name)
    return name
