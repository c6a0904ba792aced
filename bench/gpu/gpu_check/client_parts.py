"""memtide's client and daemon on the GPU, without training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from gpu_check.home import python
from gpu_check.parts import Bench, lines
from gpu_check.rows import failed

_Rows = Iterator[dict[str, Any]]
# The last check of tensors.py, which ends it.
LAST_CHECK = "a tensor whose chunk is not leased is read past the dispatcher"


def example(bench: Bench) -> _Rows:
    """The C++ example, with both ways to share memory."""
    with bench.home.daemon("--device-pool=256MiB", "--host-pool=256MiB") as sockets:
        for flags, way in (([], "descriptors"), (["--ipc"], "legacy handles")):
            command = [bench.home.program("gpu_chunk"), *flags, sockets]
            done = bench.home.run(command)
            name = f"written, evicted to SSD, fetched and verified by {way}"
            if done.returncode == 0:
                yield {"name": name, "answer": "equal", "met": True}
            else:
                yield failed(name, done.stderr)


def tensors(bench: Bench) -> _Rows:
    """torch's tensors over chunks, until one is used without a lease; and a program after that."""
    chunk_mib = 64 if not bench.home.fake else 4
    pool = f"--device-pool={16 * chunk_mib}MiB"
    with bench.home.daemon(pool, f"--host-pool={16 * chunk_mib}MiB") as sockets:
        done = bench.home.run(python(bench.home, "tensors", str(sockets), str(chunk_mib)))
        rows = list(lines(done.stdout))
        made_all = bool(rows) and rows[-1]["name"] == LAST_CHECK
        yield from rows[:-1] if made_all else rows
        if not made_all:
            yield failed("tensors.py", done.stderr)
            return
        yield {
            "name": LAST_CHECK,
            "answer": f"ends with status {done.returncode}",
            "met": done.returncode != 0,
            "goal": "the program ends",
        }
        after = bench.home.run([bench.home.program("gpu_chunk"), sockets])
        yield {
            "name": "the daemon serves another program after that",
            "answer": "yes" if after.returncode == 0 else after.stderr.strip()[-300:],
            "met": after.returncode == 0,
        }


def bad_input(bench: Bench) -> _Rows:
    """Devices and pools that the daemon must refuse."""
    cases: dict[str, tuple[list[str], dict[str, str]]] = {
        "a daemon whose GPU is hidden": (["--device=cuda"], {"CUDA_VISIBLE_DEVICES": ""}),
        "a device that is not there": (["--device=cuda:99"], {}),
        "a pool larger than the GPU": (["--device=cuda", "--device-pool=4TiB"], {}),
    }
    with tempfile.TemporaryDirectory(prefix="mt", dir="/tmp") as scratch:
        daemon = [
            bench.home.program("memtided"),
            f"--socket-dir={scratch}/s",
            "--host-pool=64MiB",
            "--no-ssd",
            "--metrics-address=off",
        ]
        for name, (flags, variables) in cases.items():
            done = bench.home.run([*daemon, *flags], **variables)
            output = done.stderr.strip().splitlines() or [""]
            yield {
                "name": name,
                "answer": output[-1][-300:],
                "met": done.returncode in (1, 2) and len(output[-1]) > 0,
                "goal": "refused, with a reason",
            }
