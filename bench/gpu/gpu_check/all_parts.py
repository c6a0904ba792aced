"""All parts, in the order in which a first run on a GPU needs them."""

from __future__ import annotations

from gpu_check import client_parts, driver_parts, llama_parts, ranks_parts, training_parts
from gpu_check.parts import Part

ALL = (
    Part(
        "contract",
        "does the device seam keep its contract?",
        30,
        driver_parts.contract,
        essential=True,
    ),
    Part(
        "sharing",
        "can two processes share GPU memory, and what if one dies?",
        60,
        driver_parts.probes("export", "release", "exporter-death", "locked-down", "reset"),
    ),
    Part(
        "mapping",
        "what do mapping, unmapping, and changing access cost?",
        40,
        driver_parts.probes("mapping", "remap"),
        essential=True,
    ),
    Part(
        "in-use",
        "what becomes of a kernel whose memory is mapped anew or unmapped?",
        30,
        driver_parts.probes("upgrade-in-use", "unmap-in-use"),
        essential=True,
    ),
    Part(
        "fences",
        "what does an event of all work of a context cost, and does it hold streams up?",
        30,
        driver_parts.probes("fences", "fenced-streams"),
    ),
    Part(
        "overlap",
        "do kernels of a script and copies of the daemon overlap without MPS?",
        40,
        driver_parts.probes("overlap"),
        essential=True,
    ),
    Part(
        "faults",
        "what do a fault, and a kill, of one process do to others?",
        40,
        driver_parts.probes("fault", "quiet"),
        essential=True,
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
        "copies",
        "are the daemon's copies as fast as plain CUDA's?",
        40,
        driver_parts.probes("copies"),
        essential=True,
    ),
    Part(
        "example",
        "does the C++ client work?",
        30,
        client_parts.example,
        essential=True,
    ),
    Part(
        "tensors",
        "do torch's tensors work over memory that is mapped and unmapped?",
        60,
        client_parts.tensors,
        essential=True,
    ),
    Part(
        "bad-input",
        "does the daemon refuse what cannot be?",
        60,
        client_parts.bad_input,
    ),
    Part(
        "fits",
        "what does memtide cost where all states fit?",
        240,
        training_parts.fits,
        essential=True,
    ),
    Part(
        "quarter",
        "how does training in a quarter of the memory compare with the plain run?",
        240,
        training_parts.quarter,
        essential=True,
    ),
    Part(
        "collectives",
        "may collectives write to chunks in place?",
        90,
        training_parts.collectives,
        essential=True,
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
