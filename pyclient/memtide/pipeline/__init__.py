"""PipeDream-2BW over the stages of torch.distributed.pipelining: no flush between batches.

    stage = PipelineStage(blocks, rank, ranks, device)
    schedule = memtide.pipeline.Schedule2BW(stage, optimizer, n_microbatches=8, loss_fn=loss_fn)
    for loss in schedule.run(batches):
        ...

After Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (ICML 2021).
"""

from memtide.pipeline._schedule import Schedule2BW

__all__ = ["Schedule2BW"]
