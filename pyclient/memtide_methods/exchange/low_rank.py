"""Messages of matrices in few columns."""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import GradBucket

from memtide_methods.exchange.messages import Reader, packed

# How much of the components before is in those of a step. A gradient of few samples shows its own,
# and the error that is left for the next step has those that it missed.
_MEMORY = 0.5


class LowRank:
    """The codec of one bucket."""

    def __init__(self, bucket: GradBucket, rank: int) -> None:
        self._parts: list[_Matrix | _Whole] = []
        start = 0
        for parameter in bucket.parameters():
            shape, elements = parameter.shape, parameter.numel()
            rows = shape[0] if len(shape) > 1 else 0
            if rows and 2 * rank * (rows + elements // rows) <= elements:
                self._parts.append(_Matrix(start, parameter, rank, seed=start))
            else:
                self._parts.append(_Whole(start, parameter))
            start += elements

    def encode(self, gradient: torch.Tensor) -> torch.Tensor:
        """Codec's."""
        return packed([each for part in self._parts for each in part.encode(gradient)])

    def add(self, message: torch.Tensor, total: torch.Tensor) -> None:
        """Codec's."""
        reader = Reader(message)
        for part in self._parts:
            part.add(reader, total)


class _Whole:
    """A parameter whose gradient is sent as it is."""

    def __init__(self, start: int, parameter: torch.Tensor) -> None:
        self._where = slice(start, start + parameter.numel())
        self._count = parameter.numel()
        self._dtype = parameter.dtype

    def encode(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        self._dtype = gradient.dtype
        return [gradient[self._where]]

    def add(self, reader: Reader, total: torch.Tensor) -> None:
        total[self._where] += reader.take([self._count], self._dtype)


class _Matrix:
    """A parameter whose gradient is sent as left @ right.T, of `rank` columns each.

    The columns of `right` are an orthonormal basis, near the gradient's principal components: each
    step multiplies a basis of the other side by the gradient (block power iteration), and adds it
    to what earlier steps gave.
    """

    def __init__(self, start: int, parameter: torch.Tensor, rank: int, seed: int) -> None:
        self._where = slice(start, start + parameter.numel())
        self._rows = parameter.shape[0]
        self._columns = parameter.numel() // self._rows
        self._rank = rank
        self._dtype = parameter.dtype
        generator = torch.Generator().manual_seed(seed)
        first = torch.randn(self._rows, rank, generator=generator).to(parameter.device)
        self._first = torch.linalg.qr(first).Q
        self._basis = self._first  # The space of the matrix's columns.
        self._followed = parameter.new_zeros((self._columns, rank), dtype=torch.float32)
        self._left = parameter.new_zeros((self._rows, self._columns), dtype=torch.float32)

    def encode(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        self._dtype = gradient.dtype
        matrix = self._left.add_(gradient[self._where].view(self._rows, self._columns))
        self._followed = matrix.T @ self._basis + _MEMORY * self._followed
        right = torch.linalg.qr(self._followed).Q.to(self._dtype)
        left = (matrix @ right.float()).to(self._dtype)
        matrix -= left.float() @ right.float().T
        self._basis = torch.linalg.qr(left.float()).Q
        self._forget_what_is_no_number()
        return [left, right]

    def add(self, reader: Reader, total: torch.Tensor) -> None:
        left = reader.take([self._rows, self._rank], self._dtype).float()
        right = reader.take([self._columns, self._rank], self._dtype).float()
        total[self._where].view(self._rows, self._columns).addmm_(left, right.T)

    def _forget_what_is_no_number(self) -> None:
        """All ranks get it in this step; the next one goes on without."""
        is_whole = self._left.isfinite().all() & self._basis.isfinite().all()
        self._left = torch.where(is_whole, self._left, 0)
        self._followed = torch.where(is_whole, self._followed, 0)
        self._basis = torch.where(is_whole, self._basis, self._first)
