#!/usr/bin/env python3
"""Counts what a fetch and its release cost: instructions, by Valgrind, and no clock.

    tools/fetch_cost.py            prints what they are in the engine of the working tree
    tools/fetch_cost.py BASE       and in a commit, which is built if it was not measured before
    tools/fetch_cost.py --files    also the sources of the engine that a fetch passes, with costs
    tools/fetch_cost.py --served   what they are on both sides of the engine: service and client

"resident" is a fetch of a chunk that is in its tier; "moving" writes a victim to SSD and reads the
chunk from there; bench/engine_bench.cc is the program. "served" is all that a gRPC handler of the
daemon does but for the engine's part, and "leased" the client's own functions, those of gRPC and
Protobuf aside. Valgrind knows no userfaultfd, so that the client has a fake GPU: --served needs the
header of CUDA. Figures of commits are kept in $MEMTIDE_CACHE/fetch_cost. No machine's speed or load
changes a figure, but for half a percent of "served".

Runs on Python's standard library alone, and Valgrind.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mutants import scratch_tree
from shell import bazel

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("MEMTIDE_CACHE", "~/.cache/memtide")).expanduser() / "fetch_cost"
PROGRAM = "bench/engine_bench"
# The sources of the programs, whose hashes name a figure.
SOURCES = ("base", "bench/engine_bench.cc", "daemon/engine", "daemon/policy")
SOURCES_OF_SERVED = ("base", "client", "daemon", "proto", "pyclient/memtide/_capi")
USES = 1000
SERVED_USES = 300
WAYS = ("resident", "moving")
OPTIMIZED = ("-c", "opt")
POSITION = re.compile(r"[+\-*\d]\S* (\d+)$")
FILES = re.compile(r"(c?)(?:fl|fi|fe)=\((\d+)\)(?: (.*))?$")
FUNCTIONS = re.compile(r"(c?)fn=\((\d+)\)(?: (.*))?$")
SERVED_PROGRAMS = ("//client:libmemtide_fake_cuda.so", "//daemon:memtided_fake_cuda")
HANDLER = "*SessionCall<memtide::*"  # In daemon/service/services.cc, for each call.
# Valgrind leaves names as long as that of this function as the linker has them.
ENGINE = (
    "_ZN7memtide10Dispatcher6Handle",
    "memtide::Dispatcher::Handle",
    # The name until 2026-11-30, which a base may have.
    "_ZN7memtide11EngineParts6Handle",
    "memtide::EngineParts::Handle",
)
CLIENT = """
import sys
from memtide._capi.client import Access, Client, Kind, Places
from memtide._capi.library import Options

client = Client(Options(sys.argv[1], chunk_bytes=2 << 20))
place = Places([client.allocate(Kind.OTHER, 1)])
for _ in range(1 + int(sys.argv[2])):
    client.acquire(place, Access.WRITE)
    client.release(place)
    client.flush()
client.close()
"""


class Error(Exception):
    """The cost cannot be counted here."""


def instructions(report, named=FILES):
    """Name -> own instructions, and name -> those of calls of it, in a report of Callgrind's."""
    names, own, of_calls = {}, collections.Counter(), collections.Counter()
    current, called, is_call = "", "", False
    for line in report.splitlines():
        if found := named.match(line):
            name = names.setdefault(found[2], found[3])
            current, called = (current, name) if found[1] else (name, called)
        elif line.startswith("calls="):
            is_call = True  # The next line has what was called.
        elif found := POSITION.match(line):
            (of_calls if is_call else own)[called if is_call else current] += int(found[1])
            is_call = False
    return own, of_calls


def built(root, flags, *targets):
    """The folder of the programs, which are built first."""
    status, output = bazel(root, 'bazel_build "$@"', *flags, *targets)
    if status != 0:
        raise Error(output)
    return bazel(root, 'bazel_bin "$@"', *flags)[1].strip().splitlines()[-1]


def callgrind(report):
    return ["valgrind", "--tool=callgrind", f"--callgrind-out-file={report.name}"]


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise Error(done.stderr)


def costs(binaries, way):
    """The instructions of one use, by file."""
    reports = []
    for uses in (0, USES):
        with tempfile.NamedTemporaryFile() as report:
            moving = ["--moving"] if way == "moving" else []
            run([*callgrind(report), f"{binaries}/{PROGRAM}", f"--uses={uses}", *moving])
            reports.append(instructions(Path(report.name).read_text())[0])
    few, many = reports
    return {path: (many[path] - few[path]) / USES for path in many}


def served_costs(root, binaries):
    """Way -> the instructions of one use, on both sides of the engine."""
    few, many = (served(root, binaries, uses) for uses in (0, SERVED_USES))
    return {way: {way: (many[way] - few[way]) / SERVED_USES} for way in few}


def served(root, binaries, uses):
    """Way -> the instructions while a client uses a chunk so often."""
    with tempfile.NamedTemporaryFile() as report:
        handlers = [*callgrind(report), "--collect-atstart=no", f"--toggle-collect={HANDLER}"]
        use(root, binaries, uses, "none", of_daemon=handlers)
        own, of_calls = instructions(Path(report.name).read_text(), FUNCTIONS)
        engine = sum(cost for name, cost in of_calls.items() if name.startswith(ENGINE))
        use(root, binaries, uses, "cuda:0", of_client=callgrind(report))
        clients, _ = instructions(Path(report.name).read_text(), FUNCTIONS)
    leased = sum(cost for name, cost in clients.items() if "memtide::client::" in name)
    return {"served": own.total() - engine, "leased": leased}


def use(root, binaries, uses, device, of_daemon=(), of_client=()):
    """Runs a daemon, and a client that uses a chunk so often, behind these commands."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "gpu").mkdir()
        environment = {
            **os.environ,
            "MEMTIDE_FAKE_CUDA": f"dir={home}/gpu,memory=256MiB",
            "MEMTIDE_LIBRARY": f"{binaries}/client/libmemtide_fake_cuda.so",
            "PYTHONPATH": f"{root}/pyclient",
        }
        program = [f"{binaries}/daemon/memtided_fake_cuda", f"--socket-dir={home}", "--no-ssd"]
        flags = [f"--device={device}", "--host-pool=64MiB", "--metrics-address=127.0.0.1:0"]
        daemon = subprocess.Popen(
            [*of_daemon, *program, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        try:
            log = []
            while not log or " serves " not in log[-1]:
                log.append(daemon.stdout.readline())
                if not log[-1]:
                    raise Error("".join(log))
            run([*of_client, sys.executable, "-c", CLIENT, home, str(uses)], environment)
        finally:
            daemon.terminate()
            daemon.communicate()


def of_tree(root, is_served, flags=OPTIMIZED):
    """Way -> path -> instructions a use."""
    if is_served:
        return served_costs(root, built(root, flags, *SERVED_PROGRAMS))
    binaries = built(root, flags, f"//{PROGRAM.replace('/', ':')}")
    return {way: costs(binaries, way) for way in WAYS}


def of_commit(commit, is_served):
    """Way -> instructions a use."""
    sources = SOURCES_OF_SERVED if is_served else SOURCES
    parts = [f"{commit}:{path}" for path in sources]
    hashes = subprocess.check_output(["git", "rev-parse", *parts], cwd=ROOT, text=True).split()
    known = CACHE / "-".join(each[:10] for each in hashes)
    if not known.exists():
        with scratch_tree(ROOT) as tree:
            subprocess.run(["git", "checkout", "--quiet", commit], cwd=tree, check=True)
            remember(known, of_tree(tree, is_served))
    return json.loads(known.read_text())


def remember(known, measured):
    CACHE.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps({way: sum(costs.values()) for way, costs in measured.items()}))


def print_files(measured):
    for way, by_file in measured.items():
        passed = {
            path[path.index("daemon/engine/") :]: cost
            for path, cost in by_file.items()
            if "daemon/engine/" in path and path.endswith(".cc") and cost >= 0.5
        }
        print(f"{way}: {len(passed)} sources of the engine")
        for path, cost in sorted(passed.items(), key=lambda item: -item[1]):
            print(f"{cost:9,.0f}  {path}")


def main(arguments):
    files, is_served = "--files" in arguments, "--served" in arguments
    bases = [argument for argument in arguments if argument not in ("--files", "--served")]
    if len(bases) > 1 or any(base.startswith("-") for base in bases) or (files and is_served):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        # Names of sources need the lines of the program.
        measured = of_tree(ROOT, is_served, (*OPTIMIZED, "--copt=-g1") if files else OPTIMIZED)
        base = of_commit(bases[0], is_served) if bases else {}
    except Error as error:
        print(f"fetch_cost: {error}", file=sys.stderr)
        return 1
    for way, by_file in measured.items():
        before = f", {base[way]:,.0f} in {bases[0]}" if base else ""
        print(f"instructions a {way} fetch and release: {sum(by_file.values()):,.0f}{before}")
    if files:
        print_files(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
