"""Two networks with an optimizer each, trained in turns: a generator and its discriminator.

gan_on_device.py DEVICE STEPS

In odd iterations both optimizers step after both backward passes, as some scripts do.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    device, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    width = 512
    generator = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2048)).to(device)
    judge = nn.Sequential(nn.Linear(2048, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
    for_generator = torch.optim.AdamW(generator.parameters(), lr=1e-3)
    for_judge = torch.optim.AdamW(judge.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        noise = torch.randn(8, 64).to(device)
        real = torch.randn(8, 2048).to(device)
        fake = generator(noise)
        for_judge.zero_grad()
        judged = judge(torch.cat([real, fake.detach()]))
        wanted = torch.cat([torch.ones(8, 1), torch.zeros(8, 1)]).to(device)
        loss = (judged - wanted).square().mean()
        loss.backward()
        if step % 2 == 0:
            for_judge.step()
        for_generator.zero_grad()
        fooled = (judge(fake) - 1).square().mean()
        fooled.backward(inputs=list(generator.parameters()))
        if step % 2:
            for_judge.step()
        for_generator.step()
        losses += [loss.item().hex(), fooled.item().hex()]
    Path(os.environ["RESULT"]).write_text(json.dumps({"losses": losses}), encoding="utf-8")


if __name__ == "__main__":
    main()
