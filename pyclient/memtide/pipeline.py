"""PipeDream-2BW over the stages of torch.distributed.pipelining, and a planner of such stages.

    stage = PipelineStage(blocks, rank, ranks, device)
    schedule = memtide.pipeline.Schedule2BW(stage, optimizer, n_microbatches=8, loss_fn=loss_fn)
    for loss in schedule.run(batches):
        ...

After Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021).
"""

from memtide_methods.pipeline.measured_layers import measured_layers
from memtide_methods.pipeline.schedule import Schedule2BW
from memtide_methods.pipeline.thinned_messages import Largest, SentByStage
from memtide_plan.pipelines.inputs import Devices, Layer, Seconds, modelled_layer
from memtide_plan.pipelines.plan import Plan, plan
from memtide_plan.pipelines.search import Fixed

__all__ = [
    "Devices",
    "Fixed",
    "Largest",
    "Layer",
    "Plan",
    "Schedule2BW",
    "Seconds",
    "SentByStage",
    "measured_layers",
    "modelled_layer",
    "plan",
]
