"""Plans the models of PipeDream-2BW's paper (Narayanan et al., Memory-Efficient Pipeline-Parallel
DNN Training, ICML 2021) with memtide.pipeline.plan, and prints the published figures beside what
the plans have: `published.py`, run by hand with memtide on Python's path.

Nothing is fitted. Where a number is not in the paper, its source is named beside it. Compute time
is flop over one rate: small micro-batches compute as fast as large ones. Memory is that of equal
stages, as in the paper; the planner cuts the stages of the other plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtide.errors import ResourceExhausted
from memtide.pipeline import Devices, Fixed, Layer, Plan, modelled_layer, plan

_CONTEXT, _VOCABULARY = 512, 51_200
# A V100 that trains 355 million parameters, in the paper.
_FLOP_PER_S = 45e12
# Bytes of a parameter in the authors' code (FP16OptimizerWithFP16Params): versions of 32 bits;
# gradients of 16 bits, which are reduced; the working copy of 16 bits, the optimizer's gradients of
# 32 bits, and Adam's two moments.
_WEIGHT_BYTES, _GRADIENT_BYTES, _STATE_BYTES = 4, 2, 2 + 4 + 8
# p3.16xlarge servers: a link of NVLink 2 has 25 GB/s each way, and eight devices share 25 Gbit/s.
_INSIDE, _ACROSS = "25GB/s", "390MB/s"
# The planner chooses a micro-batch of one sample; --batch-size 8 is that of a device in the
# authors' examples/pretrain_gpt2.sh.
_MICRO_BATCHES = (None, 8)
_BATCHES = (64, 512, 2048)
_SCHEDULES = ("1f1b", "2bw", "gpipe")


@dataclass(frozen=True)
class _Gpt:
    name: str
    devices: int
    blocks: int
    hidden: int
    heads: int

    def layers(self, count: int) -> list[Layer]:
        """The model as `count` layers of equally many blocks. The first one has the embeddings, and
        the last one the head with weights of its own, copies of the embeddings'."""
        return [self._layer(n, self.blocks // count, n == 0, n == count - 1) for n in range(count)]

    def _layer(self, number: int, blocks: int, is_first: bool, is_last: bool) -> Layer:
        h, s = self.hidden, _CONTEXT
        parameters = blocks * (12 * h * h + 13 * h)
        flop = blocks * (24 * s * h * h + 4 * s * s * h)
        # Korthikanti et al. (2022), equation 1, without parallelism.
        activations = blocks * (34 * s * h + 5 * self.heads * s * s)
        if is_first:
            parameters += (_VOCABULARY + s) * h
        if is_last:
            parameters += _VOCABULARY * h
            flop += 2 * s * _VOCABULARY * h
            activations += 4 * s * h + 4 * s * _VOCABULARY  # The same paper, section 4.3.
        return modelled_layer(
            name=str(number),
            forward_flop=flop,
            flop_per_s=_FLOP_PER_S,
            weight_bytes=_WEIGHT_BYTES * parameters,
            gradient_bytes=_GRADIENT_BYTES * parameters,
            state_bytes=_STATE_BYTES * parameters,
            activation_bytes=activations,
            output_bytes=2 * s * h,
        )


_GPTS = (
    _Gpt("2.2B", devices=8, blocks=32, hidden=2304, heads=32),
    _Gpt("3.8B", devices=64, blocks=32, hidden=3072, heads=32),
)


def _devices(count: int, memory: str) -> Devices:
    return Devices(count=count, memory=memory, per_server=8, inside=_INSIDE, across=_ACROSS)


def _print_memory(gpt: _Gpt) -> None:
    """Eight equal stages, with as much memory as they need."""
    print(
        "| micro-batch | recomputed | batch | 1F1B (Flush) | 2BW | GPipe | 2BW/1F1B | GPipe/2BW |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for micro_batch, recompute, batch in (
        *((samples, True, batch) for samples in (1, 8) for batch in (64, 2048)),
        (1, False, 64),
    ):
        fixed = Fixed(width=1, depth=8, micro_batch=micro_batch, recompute=recompute)
        layers, devices = gpt.layers(8), _devices(gpt.devices, "1TiB")
        flushing, endless, gpipe = (
            max(m.total() for m in plan(layers, devices, batch, schedules=[n], fixed=fixed).memory)
            for n in _SCHEDULES
        )
        print(
            f"| {micro_batch} | {'yes' if recompute else 'no'} | {batch} "
            f"| {flushing / 1e9:.1f} GB | {endless / 1e9:.1f} GB | {gpipe / 1e9:.1f} GB "
            f"| {endless / flushing:.2f} | {gpipe / endless:.2f} |"
        )
    print("| published, as read off bars | | | 6 GB | 9 GB | | 1.5 | |\n")


def _print_throughput() -> None:
    print(
        "| model, devices | micro-batch | batch | 1F1B (Flush) | 2BW | GPipe | 2BW over 1F1B "
        "| 2BW over GPipe |\n|---|---|---|---|---|---|---|---|"
    )
    for gpt in _GPTS:
        for micro_batch in _MICRO_BATCHES:
            for batch in _BATCHES:
                plans = [_planned(gpt, batch, micro_batch, name) for name in _SCHEDULES]
                flushing, endless, gpipe = plans
                print(
                    f"| {gpt.name}, {gpt.devices} | {micro_batch or 'chosen'} | {batch} "
                    f"| {' | '.join(map(_text, plans))} "
                    f"| {_faster(flushing, endless)} | {_faster(gpipe, endless)} |"
                )
    print("| published, small batch | | | | | | 1.6 | up to 3.2 |")
    print("| published | | 2048 | | | | 1.15 | |")


def _planned(gpt: _Gpt, batch: int, micro_batch: int | None, schedule: str) -> Plan | None:
    """None: no plan fits."""
    devices, fixed = _devices(gpt.devices, "16GiB"), Fixed(micro_batch=micro_batch)
    try:
        return plan(gpt.layers(gpt.blocks), devices, batch, schedules=[schedule], fixed=fixed)
    except ResourceExhausted:
        return None


def _text(found: Plan | None) -> str:
    if found is None:
        return "does not fit"
    shape = found.shape
    recomputed = " r" if shape.recompute else ""
    return f"{found.seconds:.3g} s, {shape.width}x{shape.depth}{recomputed}"


def _faster(other: Plan | None, endless: Plan | None) -> str:
    return f"{other.seconds / endless.seconds:.2f}" if other and endless else ""


def main() -> None:
    _print_memory(_GPTS[0])
    _print_throughput()


if __name__ == "__main__":
    main()
