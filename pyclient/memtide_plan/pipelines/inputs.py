"""The inputs of a plan: the layers of a model, and the devices that there are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from memtide._util.sizes import parse_size
from memtide.errors import InvalidArgument, UsageError

# A backward pass computes two products of matrices for each one of the forward pass.
_BACKWARD_PER_FORWARD = 2.0


@dataclass(frozen=True)
class Seconds:
    """The time of a pass over a micro-batch of b samples: per_call_s + b * per_sample_s."""

    per_sample_s: float
    per_call_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer. Layers are a sequence: each one reads only the output of the one before."""

    name: str
    forward: Seconds
    backward: Seconds
    weight_bytes: float
    # None: each gradient takes as many bytes as its weight.
    gradient_bytes: float | None = None
    # The optimizer's bytes beside the weights, masters of 16-bit weights included.
    state_bytes: float
    # Bytes that autograd holds of a sample from its forward pass to its backward pass.
    activation_bytes: float
    output_bytes: float  # A sample's.

    def gradients(self) -> float:
        """Bytes of the gradients."""
        return self.weight_bytes if self.gradient_bytes is None else self.gradient_bytes


def modelled_layer(
    *,
    name: str,
    forward_flop: float,
    flop_per_s: float,
    weight_bytes: float,
    state_bytes: float,
    activation_bytes: float,
    output_bytes: float,
    gradient_bytes: float | None = None,
) -> Layer:
    """A layer whose forward pass computes `forward_flop` for a sample, and its backward pass twice
    as much, on a device that computes `flop_per_s` of them in a second."""
    if not (math.isfinite(flop_per_s) and flop_per_s > 0):
        raise InvalidArgument(f"layer {name}: a device computes {flop_per_s} flop/s; give its rate")
    forward_s = forward_flop / flop_per_s
    return Layer(
        name=name,
        forward=Seconds(forward_s),
        backward=Seconds(_BACKWARD_PER_FORWARD * forward_s),
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        state_bytes=state_bytes,
        activation_bytes=activation_bytes,
        output_bytes=output_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Equal devices in equal servers: ranks 0, 1, ... fill one server after another.

    Text with units: memory such as "16GiB", links such as "25GB/s". A link's rate is what one
    device can send to another while all devices of its server send.
    """

    count: int
    memory: str  # The memory of one device.
    per_server: int
    inside: str  # The link between two devices of a server.
    across: str  # The link between devices of two servers.

    def memory_bytes(self) -> int:
        """The memory of one device. InvalidArgument."""
        return _bytes(self.memory, "the memory of a device", "16GiB")

    def inside_bytes_per_s(self) -> int:
        """The rate of the link between two devices of a server. InvalidArgument."""
        return _rate(self.inside, "the link inside a server")

    def across_bytes_per_s(self) -> int:
        """The rate of the link between devices of two servers. InvalidArgument."""
        return _rate(self.across, "the link across servers")

    def check(self) -> None:
        """Raises InvalidArgument for what no plan can be made for."""
        for name, value in (("count", self.count), ("per_server", self.per_server)):
            if value < 1:
                raise InvalidArgument(f"Devices.{name} is {value}; a plan needs one device or more")
        self.memory_bytes()
        self.inside_bytes_per_s()
        self.across_bytes_per_s()


def check_layers(layers: Sequence[Layer]) -> None:
    """Raises InvalidArgument for the first layer that has a time or a size that is none."""
    if not layers:
        raise InvalidArgument("there are no layers to plan for")
    for layer in layers:
        for what, value in _numbers(layer):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(
                    f"layer {layer.name}: {what} is {value}; times and sizes are finite numbers, "
                    "zero or more"
                )


def _numbers(layer: Layer) -> list[tuple[str, float]]:
    numbers = [
        (f"{passed}.{field.name}", getattr(seconds, field.name))
        for passed, seconds in (("forward", layer.forward), ("backward", layer.backward))
        for field in fields(seconds)
    ]
    sizes = ("weight_bytes", "state_bytes", "activation_bytes", "output_bytes")
    return [*numbers, *((name, getattr(layer, name)) for name in sizes)] + [
        ("gradient_bytes", layer.gradients())
    ]


def _bytes(text: str, what: str, example: str) -> int:
    if not re.search(r"[a-zA-Z]", text):
        raise InvalidArgument(f"{what} is '{text}', without a unit; write for example {example}")
    try:
        size = parse_size(text)
    except UsageError as error:
        raise InvalidArgument(f"{what}: {error}") from error
    if size < 1:
        raise InvalidArgument(f"{what} is '{text}'; it must be more than zero")
    return size


def _rate(text: str, what: str) -> int:
    if not text.endswith("/s"):
        raise InvalidArgument(f"{what} is '{text}', without a unit; write for example 25GB/s")
    return _bytes(text.removesuffix("/s"), what, "25GB/s")
