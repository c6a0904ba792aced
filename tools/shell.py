"""Functions of tools/lib.sh for programs in Python."""

import subprocess
from pathlib import Path


def command(script: str, *arguments: str) -> list[str]:
    """The command of a script that may call the functions of tools/lib.sh, in the tree's root."""
    return ["bash", "-c", f"source tools/lib.sh; {script}", "tools", *arguments]


def bazel(root: Path, script: str, *arguments: str) -> tuple[int, str]:
    """Runs a script that may call bazel_build and the others; its exit status and its output."""
    done = subprocess.run(
        command(script, *arguments),
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout
