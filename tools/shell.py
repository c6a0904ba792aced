"""Functions of tools/lib.sh for programs in Python."""

import subprocess
from pathlib import Path


def bazel(root: Path, script: str, *arguments: str) -> tuple[int, str]:
    """Runs a script that may call bazel_build and the others; its exit status and its output."""
    command = ["bash", "-c", f"source tools/lib.sh; {script}", "tools", *arguments]
    done = subprocess.run(
        command,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout
