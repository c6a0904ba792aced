"""Rounding by chance: a number becomes one of the two bfloat16 numbers beside it, each in
proportion to how near it is, so that what many small steps add up to is right in the mean (Gupta et
al., arXiv 1502.02551).

The daemon's kernels round to the same bits (`RandomBits` in daemon/optimizer/lanes-inl.h): what
decides is a function of seed, step and the element's number, and of nothing else.
"""

from __future__ import annotations

import torch

from memtide.layouts import is_dense

_BLOCK = 1 << 20  # Elements at a time; what it takes beside them is 50 MiB.
_WORD = 2**32 - 1
_LONG = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's.


def round_by_chance(
    values: torch.Tensor, to: torch.Tensor, *, seed: int, step: int, first_element: int
) -> None:
    """Writes fp32 `values`, rounded, to bfloat16 `to`; infinities and NaN stay what they are.

    Elements are numbered from `first_element` on, in the order in which `to` lies in memory, or of
    its indices where it has gaps. REQUIRES: both are laid out alike.
    """
    if not is_dense(to):
        rounded = torch.empty(to.shape, dtype=to.dtype, device=to.device)
        numbers = {"seed": seed, "step": step, "first_element": first_element}
        round_by_chance(values.contiguous(), rounded, **numbers)
        to.copy_(rounded)
        return
    source, target = _flat(values), _flat(to).view(torch.int16)
    begin = 0
    while begin < target.numel():
        first = first_element + begin
        # Keys hold for 2^32 numbers.
        size = min(_BLOCK, target.numel() - begin, 2**32 - (first & _WORD))
        index = torch.arange(size, device=to.device) + (first & _WORD)
        chances = _sixteen_bits(index, *_keys(seed, step, first >> 32))
        block = source[begin : begin + size]
        bits = block.view(torch.int32).long() & _WORD
        rounded = (bits + chances) >> 16
        rounded = torch.where(block.isnan(), (bits >> 16) | 0x40, rounded)
        target[begin : begin + size].copy_(rounded)  # Of which the low 16 bits stay.
        begin += size


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _keys(seed: int, step: int, index_high: int) -> tuple[int, int]:
    mixed = _mix((seed + _GOLDEN) & _LONG) ^ (step * _GOLDEN & _LONG)
    key = _mix((_mix(mixed) + index_high + 1) & _LONG)
    return key & _WORD, key >> 32


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _LONG
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _LONG
    return x ^ (x >> 31)


def _sixteen_bits(index: torch.Tensor, first_key: int, second_key: int) -> torch.Tensor:
    once = _scramble(index ^ first_key)
    return _scramble((once + second_key) & _WORD) >> 16


def _scramble(x: torch.Tensor) -> torch.Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _WORD  # int64 wraps, and its low half is right.
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & _WORD
    return x ^ (x >> 15)
