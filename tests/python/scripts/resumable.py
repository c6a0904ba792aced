"""Training that can be resumed after a kill: `resumable.py STEPS`. Writes each loss at once.

In step WAIT_AT, if it is set, the script waits for the file WAIT_FOR after the backward pass.
KILL_AT is the step in which the process kills itself, KILL_AFTER_S the seconds after that step's
backward pass, so that it dies in the optimizer's step or after it. With HALF, the model is bf16,
with masters.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import memtide
import torch
from sequence_point import wait_for
from tiny_gpt import TinyGpt, batch, loss_of

steps = int(sys.argv[1])
kill_at = int(os.environ.get("KILL_AT", -1))
wait_at = int(os.environ.get("WAIT_AT", -1))
torch.manual_seed(0)
model = TinyGpt(width=384)
if "HALF" in os.environ:
    model.bfloat16()
make = memtide.AdamW if "HALF" in os.environ else torch.optim.AdamW
optimizer = make(model.parameters(), lr=1e-3)
with Path(os.environ["RESULT"]).open("a", buffering=1, encoding="utf-8") as losses:
    for step in range(memtide.resumed_step(), steps):
        torch.manual_seed(step)
        loss = loss_of(model, batch())
        optimizer.zero_grad()
        loss.backward()
        losses.write(f"{step} {loss.item().hex()} {time.time()}\n")
        if step == wait_at:
            wait_for(Path(os.environ["WAIT_FOR"]))
        if step == kill_at:
            delay = float(os.environ["KILL_AFTER_S"])
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        optimizer.step()
        if step == kill_at:
            signal.pause()
