#!/usr/bin/env python3
"""Prints the ten units that Bazel's last command in this checkout compiled for longest.

    python3 tools/tidy/units.py [PROFILE]

PROFILE is what Bazel writes with --profile; by default that of the last command. Seconds are of the
wall: build with --jobs=1 to compare them. Runs on Python's standard library alone.
"""

import gzip
import heapq
import json
import subprocess
import sys
from pathlib import Path

MOST = 10


def compiled(events):
    """(seconds, source) of each compiler that ran."""
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "action processing" and name.startswith("Compiling "):
            yield event["dur"] / 1e6, name.removeprefix("Compiling ")


def last_profile():
    command = ["bazel", "info", "output_base"]
    base = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(base.strip()) / "command.profile.gz"


def main(arguments):
    path = Path(arguments[0]) if arguments else last_profile()
    with gzip.open(path, "rt", encoding="utf-8") as profile:
        units = list(compiled(json.load(profile)["traceEvents"]))
    for seconds, source in heapq.nlargest(MOST, units):
        print(f"{seconds:7.1f} s  {source}")
    print(f"{sum(seconds for seconds, _ in units):7.1f} s  {len(units)} units together")


if __name__ == "__main__":
    main(sys.argv[1:])
