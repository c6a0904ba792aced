"""Training on batches that worker processes prepare."""

import torch
from common import finish
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Seeded points with their classes."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(512, generator=generator), index % 7


def main() -> None:
    torch.manual_seed(12)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024),
        torch.nn.Tanh(),
        torch.nn.Linear(1024, 1024),
        torch.nn.Tanh(),
        torch.nn.Linear(1024, 7),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Points(), batch_size=24, shuffle=True, num_workers=2)
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    finish(losses, model)


if __name__ == "__main__":
    main()
