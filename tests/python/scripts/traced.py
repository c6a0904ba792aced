"""Counts the lines that Python runs in its own file, as tools for coverage and debuggers do."""

import sys
import threading
from types import FrameType
from typing import Any

lines: dict[int, int] = {}


def trace(frame: FrameType, event: str, _argument: Any) -> Any:
    """The trace function of this thread and of those that it starts."""
    if event == "line" and frame.f_code.co_filename == __file__:
        lines[frame.f_lineno] = lines.get(frame.f_lineno, 0) + 1
    return trace


threading.settrace(trace)
sys.settrace(trace)


def main() -> None:
    """Trains."""
    import torch
    from common import finish

    torch.manual_seed(25)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 512)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    here = sys.gettrace() is trace
    sys.settrace(None)
    finish([*losses, float(here), float(max(lines.values())), float(len(lines))], model)


main()
