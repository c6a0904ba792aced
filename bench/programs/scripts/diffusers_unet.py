"""Trains an unconditional diffusion model of diffusers with accelerate, as its tutorial does."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader

BATCH, STEPS, SIZE = 40, 8, 64

set_seed(0)
accelerator = Accelerator(cpu=True)
model = UNet2DModel(
    sample_size=SIZE,
    layers_per_block=2,
    block_out_channels=(32, 32, 64, 64),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
noises = DDPMScheduler(num_train_timesteps=1000)
images = DataLoader(torch.rand(BATCH * STEPS, 3, SIZE, SIZE), batch_size=BATCH, shuffle=True)
model, optimizer, images, schedule = accelerator.prepare(model, optimizer, images, schedule)
for batch in images:
    noise = torch.randn_like(batch)
    times = torch.randint(0, noises.config.num_train_timesteps, (len(batch),))
    with accelerator.accumulate(model):
        predicted = model(noises.add_noise(batch, noise, times), times, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(predicted, noise)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
