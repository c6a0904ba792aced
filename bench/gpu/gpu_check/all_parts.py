"""All parts: those of the first command on a card, of the second one, and the rest, each in the
order in which they are needed."""

from __future__ import annotations

from gpu_check import (
    client_parts,
    driver_parts,
    llama_parts,
    ranks_parts,
    training_parts,
    user_parts,
)
from gpu_check.parts import Part

ALL = (
    Part(
        "contract",
        "does the device seam keep its contract?",
        15,
        driver_parts.contract,
        essential=True,
    ),
    Part(
        "overlap",
        "do kernels of a script and copies of the daemon overlap without MPS?",
        25,
        driver_parts.probes("overlap"),
        essential=True,
    ),
    Part(
        "mapping",
        "what do mapping, unmapping, and changing access cost?",
        25,
        driver_parts.probes("mapping", "remap"),
        essential=True,
    ),
    Part(
        "copies",
        "are the daemon's copies as fast as plain CUDA's?",
        25,
        driver_parts.probes("copies"),
        essential=True,
    ),
    Part(
        "short-step",
        "where does the time of a short step in a quarter of the memory go?",
        100,
        user_parts.short_step,
        essential=True,
    ),
    Part(
        "embedding",
        "does a step of more chunks than may be leased give the same?",
        60,
        llama_parts.embedding,
        essential=True,
    ),
    Part(
        "quarter",
        "how does training in a quarter of the memory compare with the plain run?",
        75,
        training_parts.quarter,
        essential=True,
    ),
    Part(
        "job",
        "how fast are steps in parts, of a named job?",
        50,
        training_parts.named_job,
        essential=True,
    ),
    Part(
        "activations",
        "does a script that checkpoints nothing train in 40% of its memory?",
        90,
        user_parts.activations,
        essential=True,
    ),
    Part(
        "triton",
        "do Triton's kernels work over a module's own weight?",
        35,
        user_parts.triton,
        essential=True,
    ),
    Part(
        "autocast",
        "does fp32 under autocast train in a quarter of the memory?",
        35,
        user_parts.autocast,
        essential=True,
    ),
    Part(
        "ssd",
        "how fast is training whose states are on SSD?",
        35,
        user_parts.ssd,
        essential=True,
    ),
    Part(
        "llama-8b-budget",
        "how fast is a model of Llama-3-8B's shape in a budget of all that it uses?",
        200,
        llama_parts.budget,
        frontier=True,
    ),
    Part(
        "frontier",
        "what speed is left in 10 to 60% of the memory?",
        130,
        user_parts.frontier,
        frontier=True,
    ),
    Part(
        "in-use",
        "what becomes of a kernel whose memory is mapped anew or unmapped?",
        30,
        driver_parts.probes("upgrade-in-use", "unmap-in-use"),
    ),
    Part(
        "faults",
        "what do a fault, and a kill, of one process do to others?",
        40,
        driver_parts.probes("fault", "quiet"),
    ),
    Part(
        "example",
        "does the C++ client work?",
        30,
        client_parts.example,
    ),
    Part(
        "tensors",
        "do torch's tensors work over memory that is mapped and unmapped?",
        60,
        client_parts.tensors,
    ),
    Part(
        "fits",
        "what does memtide cost where all states fit?",
        240,
        training_parts.fits,
    ),
    Part(
        "collectives",
        "may collectives write to chunks in place?",
        90,
        training_parts.collectives,
    ),
    Part(
        "compile",
        "are compiled blocks as fast, and the same?",
        120,
        user_parts.compiled,
    ),
    Part(
        "lora",
        "do adapters over a frozen base train in a quarter of the memory?",
        120,
        user_parts.lora,
    ),
    Part(
        "quantized-base",
        "do adapters over a base in int8?",
        120,
        user_parts.quantized_base,
    ),
    Part(
        "sharing",
        "can two processes share GPU memory, and what if one dies?",
        60,
        driver_parts.probes("export", "release", "exporter-death", "locked-down", "reset"),
    ),
    Part(
        "fences",
        "what does an event of all work of a context cost, and does it hold streams up?",
        30,
        driver_parts.probes("fences", "fenced-streams"),
    ),
    Part(
        "contexts",
        "how much memory does a second process take?",
        30,
        driver_parts.probes("contexts"),
    ),
    Part(
        "host-memory",
        "can GPU and disks copy from the same host memory, and what does pinning cost?",
        60,
        driver_parts.probes("host-memory", "pinning"),
    ),
    Part(
        "bad-input",
        "does the daemon refuse what cannot be?",
        60,
        client_parts.bad_input,
    ),
    Part(
        "ranks",
        "do ranks keep what they train once, and what does that cost?",
        240,
        ranks_parts.ranks,
    ),
    Part(
        "chunk-sizes",
        "does another chunk size make steps faster?",
        400,
        training_parts.chunk_sizes,
    ),
    Part(
        "llama-8b",
        "how fast is a model of Llama-3-8B's shape in 8.8 GiB?",
        480,
        llama_parts.llama,
    ),
    Part(
        "llama-8b-peer",
        "how fast is the same under DeepSpeed's ZeRO-Offload?",
        480,
        llama_parts.peer,
        peer=True,
    ),
    Part(
        "llama-1b-peer",
        "how fast is a model of Llama-3.2-1B's shape, plain, here, and under DeepSpeed?",
        300,
        llama_parts.small_peer,
        peer=True,
    ),
)

TITLES = {part.name: part.asks[0].upper() + part.asks[1:] for part in ALL}
