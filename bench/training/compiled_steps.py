"""Times a small GPT that inductor compiles, under memtide on a fake GPU against plain torch, step
by step in turns.

Tensors are on the CPU, and batches have 16 tokens, so that compiled code hides little of what
memtide adds to it. Weights are small, since over the fake GPU's memory the CPU is slower than over
ordinary memory, for all code. Both runs compile before the first step is timed.
"""

from __future__ import annotations

import tempfile

from fake_gpu import Options
from figures import Pair
from training import train_overhead

_CONTEXT = 16
_LAYERS, _WIDTH = 12, 64
_STEPS_PER_SAMPLE = 40  # CPU times have ticks of 10 ms.
_WARM_UP_STEPS = 20  # The phases in which one lease holds all chunks begin after some.


def measure(options: Options) -> dict[str, list[Pair]]:
    """Measures milliseconds a step, of the clock and of CPU time."""
    options.check()
    with tempfile.TemporaryDirectory(prefix="mt", dir="/dev/shm") as memory:
        wall, cpu = train_overhead.measure_with_cpu(
            train_overhead.StepOptions(
                script=options.script,
                arguments=[
                    *("--compile", "--steps", "1000000"),
                    *("--batch", "1", "--context", str(_CONTEXT)),
                    *("--layers", str(_LAYERS), "--width", str(_WIDTH)),
                ],
                memtide_arguments=[
                    *("--device=cuda", "--device-pool=1024MiB", "--host-pool=256MiB"),
                ],
                most_pairs=options.most_pairs,
                most_seconds=options.most_seconds,
                environment={
                    "MEMTIDE_LIBRARY": str(options.client),
                    "MEMTIDED": str(options.memtided),
                    "MEMTIDE_FAKE_CUDA": f"dir={memory},memory=2GiB",
                    "OMP_NUM_THREADS": "1",
                    "TORCHINDUCTOR_COMPILE_THREADS": "1",
                },
                steps_per_sample=_STEPS_PER_SAMPLE,
                warm_up_steps=_WARM_UP_STEPS,
            )
        )
    return {
        "compiled.step": [_milliseconds(pair) for pair in wall],
        "compiled.cpu": [_milliseconds(pair) for pair in cpu],
    }


def _milliseconds(pair: Pair) -> Pair:
    return Pair(pair.limit * 1e3, pair.product * 1e3, pair.others_cpus)
