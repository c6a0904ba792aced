"""PipeDream-2BW over the stages of torch.distributed.pipelining, and a planner of such stages.

    stage = PipelineStage(blocks, rank, ranks, device)
    schedule = memtide.pipeline.Schedule2BW(stage, optimizer, n_microbatches=8, loss_fn=loss_fn)
    for loss in schedule.run(batches):
        ...

After Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021).
"""

from memtide._pipeline_plan.inputs import Devices, Layer, Seconds, modelled_layer
from memtide._pipeline_plan.plan import Plan, plan
from memtide._pipeline_plan.search import Fixed
from memtide.pipeline._measured_layers import measured_layers
from memtide.pipeline._schedule import Schedule2BW
from memtide.pipeline._thinned_messages import Largest, SentByStage

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
