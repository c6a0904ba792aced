#!/usr/bin/env python3
"""Writes compile_commands.json from `bazel aquery`; extra arguments go to bazel.

Each file is an entry (--config=by_file). For clangd and clang-tidy, give --config=clang. Build once
before, so that generated headers exist.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (".cc", ".cpp", ".cu", ".c")


def bazel(*arguments):
    command = ["bazel", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def absolute(argument, prefixes):
    """Paths into Bazel's output trees are relative to its execution root, not to ours."""
    for flag in ("", "-I", "-iquote", "-isystem"):
        for prefix, real in prefixes.items():
            if argument.startswith(flag + prefix):
                return flag + real + argument[len(flag) + len(prefix) :]
    return argument


def main():
    info = bazel("info", "output_base", "output_path").splitlines()
    paths = dict(line.split(": ", 1) for line in info)
    prefixes = {
        "bazel-out/": paths["output_path"] + "/",
        "external/": paths["output_base"] + "/external/",
    }
    query = 'mnemonic("CppCompile|CudaCompile", //...)'
    actions = bazel(
        "aquery",
        "--config=by_file",
        "--output=jsonproto",
        "--include_artifacts=false",
        query,
        *sys.argv[1:],
    )
    entries = {}
    for action in json.loads(actions).get("actions", []):
        arguments = action["arguments"]
        source = next((a for a in arguments if a.endswith(SOURCES) and a[0] != "-"), None)
        if not source or source.startswith("external/"):
            continue
        arguments = [
            absolute(a, prefixes) for a in arguments if a != "-fno-canonical-system-headers"
        ]
        entries[source] = {
            "directory": str(ROOT),
            "file": absolute(source, prefixes),
            "arguments": arguments,
        }
    (ROOT / "compile_commands.json").write_text(json.dumps(list(entries.values()), indent=1))
    print(len(entries), "entries")


if __name__ == "__main__":
    main()
