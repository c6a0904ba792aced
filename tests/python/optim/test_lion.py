"""memtide.Lion without a daemon computes the paper's algorithm. See also test_low_precision.py, and
with a daemon optimizer_step/test_offloaded_step.py and scripts/lion.py."""

from __future__ import annotations

import memtide
import pytest
import torch


def test_it_follows_the_papers_program() -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(40))
    optimizer = memtide.Lion([parameter], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    theta, momentum = parameter.detach().double().clone(), torch.zeros(40, dtype=torch.float64)
    for _ in range(5):
        parameter.grad = torch.randn(40)
        gradient = parameter.grad.double()
        update = torch.sign(0.8 * momentum + 0.2 * gradient)
        theta = theta - 0.01 * (update + 0.1 * theta)
        momentum = 0.95 * momentum + 0.05 * gradient
        optimizer.step()
    torch.testing.assert_close(parameter.detach().double(), theta, rtol=1e-5, atol=1e-6)
    state = optimizer.state[parameter]["exp_avg"]
    torch.testing.assert_close(state.double(), momentum, rtol=1e-5, atol=1e-6)


def test_it_behaves_as_an_optimizer_of_torch_does() -> None:
    model = torch.nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    optimizer = memtide.Lion(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(optimizer.step(closure).item() + 8)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert list(optimizer.state) == [model.weight], "the frozen one has none"
    again = memtide.Lion(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert torch.equal(
        again.state[model.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"]
    )
