"""Trains torchtitan's Llama 3 debug model with its optimizers, schedules and recomputation, in the
order of its train.py, whose own class needs a GPU."""

from __future__ import annotations

import printing
import torch
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as distributed
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.llama3 import llama3_args
from torchtitan.protocols.train_spec import get_train_spec

STEPS, BATCH, LENGTH = 6, 2, 64

config = JobConfig()
config.training.seq_len, config.training.steps = LENGTH, STEPS
config.lr_scheduler.warmup_steps = 2
config.optimizer.implementation = "foreach"
config.activation_checkpoint.mode = "full"
parallel = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)
spec = get_train_spec("llama3")
torch.manual_seed(0)
arguments = llama3_args["debugmodel"]
arguments.update_from_config(config)
with torch.device("meta"):
    model = spec.model_cls(arguments)
apply_ac(model, config.activation_checkpoint, model_compile_enabled=False)
model.to_empty(device="cpu")
with torch.no_grad():
    model.init_weights(buffer_device=None)
model.train()
loss_of = spec.build_loss_fn(config, parallel_dims=parallel)
optimizers = spec.build_optimizers_fn([model], config.optimizer, parallel)
schedules = spec.build_lr_schedulers_fn(optimizers, config.lr_scheduler, STEPS)
for _ in range(STEPS):
    optimizers.zero_grad()
    tokens = torch.randint(0, arguments.vocab_size, (BATCH, LENGTH + 1))
    loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    distributed.clip_grad_norm_(model.parameters(), config.training.max_norm, foreach=True)
    optimizers.step()
    schedules.step()
    printing.loss(loss.detach())
printing.optimizer(optimizers.optimizers[0])
