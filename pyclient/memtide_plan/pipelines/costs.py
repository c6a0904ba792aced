"""The costs of a stage in time and memory.

After Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021), section 3.3 and
its appendix, with these differences:

- Stages are unequal, and costs are those of each. The paper divides a model of equal blocks by d.
- Recomputation adds a stage's measured forward time. The paper multiplies by 4/3, which is the same
  where a backward takes twice as long as a forward.
- The gradients' all-reduce adds to the time of a batch. The paper hides it under the batch
  (a maximum instead of a sum); Schedule2BW does not.
- With a flush, a batch takes the time of one micro-batch through all stages, and that of all others
  and of the all-reduce in the stage where it is longest. Equal stages give the paper's
  (m + d - 1) / m.
- Gradients and optimizer states are counted; the paper has only weights.

The time of a stage is that of computing, and of sending over the links beside it: an output
forward, and its gradient backward, 2 * A / bandwidth for each link, as in the paper. Width costs a
ring all-reduce, 2 (w - 1) / w * gradients / bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from memtide_plan.pipelines.inputs import Layer
from memtide_plan.pipelines.schedules import Schedule
from memtide_plan.pipelines.topology import Links


@dataclass(frozen=True)
class Shape:
    """All of a plan but the cuts of its stages."""

    width: int
    depth: int
    layout: str
    micro_batch: int  # Samples.
    micro_batches: int  # In a batch, for one pipeline.
    recompute: bool
    schedule: Schedule


class Memory(NamedTuple):
    """Bytes of a device, by what they are for."""

    weights: float  # All versions.
    gradients: float
    optimizer_states: float
    activations: float  # Activations of the micro-batches that wait for their backward.

    def total(self) -> float:
        """Their sum."""
        return sum(self)


class Sums:
    """Sums over the layers before each one, so that those of a stage are differences."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.count = len(layers)
        self.forward_per_sample_s = _sums([layer.forward.per_sample_s for layer in layers])
        self.forward_per_call_s = _sums([layer.forward.per_call_s for layer in layers])
        self.backward_per_sample_s = _sums([layer.backward.per_sample_s for layer in layers])
        self.backward_per_call_s = _sums([layer.backward.per_call_s for layer in layers])
        self.weights = _sums([layer.weight_bytes for layer in layers])
        self.gradients = _sums([layer.gradients() for layer in layers])
        self.states = _sums([layer.state_bytes for layer in layers])
        self.activations = _sums([layer.activation_bytes for layer in layers])
        # Bytes that pass the cut before each layer; the model's own input and output pass none.
        self._bounds: dict[tuple[int, bool], tuple[float, float]] = {}
        self.crossing = [0.0, *(layer.output_bytes for layer in layers[:-1]), 0.0]

    def layer_bytes(self, versions: int, samples: int) -> float:
        """The most bytes of a layer with one micro-batch of that many samples."""
        return max(
            versions * layer.weight_bytes
            + layer.gradients()
            + layer.state_bytes
            + samples * layer.activation_bytes
            for layer in self.layers
        )

    def compute_bounds(self, samples: int, recompute: bool) -> tuple[float, float]:
        """Seconds that a micro-batch computes, and the most of them that one layer has."""
        forwards = 2 if recompute else 1
        key = (samples, recompute)
        if key not in self._bounds:
            seconds = [
                samples * (forwards * layer.forward.per_sample_s + layer.backward.per_sample_s)
                + forwards * layer.forward.per_call_s
                + layer.backward.per_call_s
                for layer in self.layers
            ]
            self._bounds[key] = (sum(seconds), max(seconds))
        return self._bounds[key]


class StageCosts:
    """The costs of stages of one Shape. A stage is its number and its layers, `first` to `end`
    (exclusive)."""

    def __init__(self, sums: Sums, shape: Shape, links: Links) -> None:
        self.sums, self.shape, self.links = sums, shape, links
        samples = shape.micro_batch
        forwards = 2 if shape.recompute else 1
        # Before each layer: seconds that a micro-batch computes.
        self.compute_s = [
            samples * (forwards * forward + backward) + forwards * forward_call + backward_call
            for forward, backward, forward_call, backward_call in zip(
                sums.forward_per_sample_s,
                sums.backward_per_sample_s,
                sums.forward_per_call_s,
                sums.backward_per_call_s,
                strict=True,
            )
        ]
        # Before each layer: bytes of a device that are there with any number of micro-batches.
        self.resident = [
            shape.schedule.weight_versions * weights + gradients + states
            for weights, gradients, states in zip(
                sums.weights, sums.gradients, sums.states, strict=True
            )
        ]
        self._load_before: dict[float, list[float]] = {}

    def link_s_per_byte(self, link: int) -> float:
        """Seconds that a micro-batch spends on the link between stages `link` and `link` + 1, for
        each byte of a sample; 0 before the first stage and after the last."""
        if not 0 <= link < self.shape.depth - 1:
            return 0.0
        return 2 * self.shape.micro_batch / self.links.forward[link]

    def link_s(self, link: int, cut: int) -> float:
        """The same where the model is cut before layer `cut`."""
        return self.link_s_per_byte(link) * self.sums.crossing[cut]

    def exchange_s_per_byte(self, stage: int) -> float:
        """Seconds of the all-reduce for each byte of a stage's gradients."""
        width = self.shape.width
        return 2 * (width - 1) / width / self.links.width[stage]

    def pass_s(self, stage: int, first: int, end: int) -> float:
        """Seconds of a micro-batch in a stage, with the link before it."""
        return self.compute_s[end] - self.compute_s[first] + self.link_s(stage - 1, first)

    def repeats(self) -> int:
        """How many times a batch's time has the longest stage's."""
        schedule = self.shape.schedule
        return self.shape.micro_batches - (1 if schedule.flushes else 0)

    def load_before(self, stage: int) -> list[float]:
        """load_s of all layers before each one, without links."""
        exchange = self.exchange_s_per_byte(stage)
        if exchange not in self._load_before:
            repeats = self.repeats()
            self._load_before[exchange] = [
                repeats * seconds + exchange * gradients
                for seconds, gradients in zip(self.compute_s, self.sums.gradients, strict=True)
            ]
        return self._load_before[exchange]

    def load_s(self, stage: int, first: int, end: int) -> float:
        """Seconds of a batch that other stages wait for if they are this stage's."""
        micro_batch_s = self.pass_s(stage, first, end) + self.link_s(stage, end)
        gradients = self.sums.gradients[end] - self.sums.gradients[first]
        return self.repeats() * micro_batch_s + self.exchange_s_per_byte(stage) * gradients

    def memory(self, stage: int, first: int, end: int) -> Memory:
        """A device of the stage.

        With recomputation, the micro-batches in flight have only the stage's input, and one of them
        has all activations, those of the stage at once."""
        sums, shape = self.sums, self.shape
        flying = shape.schedule.in_flight(shape.micro_batches, shape.depth, stage)
        saved = shape.micro_batch * (sums.activations[end] - sums.activations[first])
        if shape.recompute:
            activations = saved + flying * shape.micro_batch * sums.crossing[first]
        else:
            activations = flying * saved
        return Memory(
            weights=shape.schedule.weight_versions * (sums.weights[end] - sums.weights[first]),
            gradients=sums.gradients[end] - sums.gradients[first],
            optimizer_states=sums.states[end] - sums.states[first],
            activations=activations,
        )

    def batch_s(self, cuts: Sequence[int]) -> float:
        """Seconds of a batch. `cuts`: 0, the first layer of each further stage, and the number of
        layers."""
        stages = list(enumerate(zip(cuts, cuts[1:], strict=False)))
        longest = max(self.load_s(stage, *span) for stage, span in stages)
        if not self.shape.schedule.flushes:
            return longest
        return sum(self.pass_s(stage, *span) for stage, span in stages) + longest


def _sums(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(values)]
