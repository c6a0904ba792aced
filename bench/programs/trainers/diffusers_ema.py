"""Trains an unconditional diffusion model with a moving average of its weights, as diffusers'
train_unconditional.py does."""

from __future__ import annotations

import printing
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader

BATCH, STEPS, SIZE = 4, 8, 16

set_seed(0)
accelerator = Accelerator(cpu=True)
model = UNet2DModel(
    sample_size=SIZE,
    layers_per_block=1,
    block_out_channels=(64, 128),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
average = EMAModel(
    model.parameters(),
    decay=0.9999,
    use_ema_warmup=True,
    model_cls=UNet2DModel,
    model_config=model.config,
)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6, eps=1e-8
)
schedule = get_scheduler("cosine", optimizer, num_warmup_steps=2, num_training_steps=STEPS)
noises = DDPMScheduler(num_train_timesteps=1000)
images = DataLoader(torch.rand(BATCH * STEPS, 3, SIZE, SIZE), batch_size=BATCH, shuffle=True)
model, optimizer, images, schedule = accelerator.prepare(model, optimizer, images, schedule)
for batch in images:
    noise = torch.randn_like(batch)
    times = torch.randint(0, noises.config.num_train_timesteps, (len(batch),))
    with accelerator.accumulate(model):
        predicted = model(noises.add_noise(batch, noise, times), times).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), noise.float())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        average.step(model.parameters())
    printing.loss(accelerator.gather_for_metrics(loss.detach()))
average.store(model.parameters())
average.copy_to(model.parameters())
with torch.no_grad():
    printing.loss(model(batch, times).sample.square().mean())
average.restore(model.parameters())
printing.optimizer(optimizer)
