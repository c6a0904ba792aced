"""Where the stages of pipelines are, and which links they use."""

from __future__ import annotations

from dataclasses import dataclass

from memtide_plan.pipelines.inputs import Devices

# The ranks of a pipeline are consecutive, as those of examples/train_pipeline.py; or the ranks that
# have the same stage are.
LAYOUTS = ("pipelines", "stages")


@dataclass(frozen=True)
class Links:
    """The rates in bytes/s that a grid of width x depth devices has."""

    # Between stage p and stage p + 1, of the slowest pipeline.
    forward: tuple[float, ...]
    # Among the devices that have stage p.
    width: tuple[float, ...]


def links_of(devices: Devices, layout: str, width: int, depth: int) -> Links:
    """The links of `width` pipelines of `depth` stages. A link is one across servers if one
    pipeline's is: the others wait for it once a batch."""
    inside, across = devices.inside_bytes_per_s(), devices.across_bytes_per_s()

    def servers(stage: int, pipeline: int) -> int:
        by_pipelines = layout == "pipelines"
        rank = pipeline * depth + stage if by_pipelines else stage * width + pipeline
        return rank // devices.per_server

    def rate(is_inside: bool) -> int:
        return inside if is_inside else across

    places = [[servers(p, k) for k in range(width)] for p in range(depth)]
    pairs = zip(places, places[1:], strict=False)
    return Links(
        forward=tuple(rate(here == there) for here, there in pairs),
        width=tuple(rate(len(set(here)) == 1) for here in places),
    )
