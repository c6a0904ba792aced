"""Stochastic rounding from fp32 to bf16 (Gupta et al., arXiv 1502.02551).

A number becomes one of the two neighbouring bf16 numbers, the nearer one with the larger
probability, so that the mean is exact and many small updates add up.

Sixteen random bits are added to the bits of a number, whose low sixteen are then dropped. They are
a function of the seed, the step and the element's number only, so that a tensor is rounded to the
same bits however its elements are divided:

- SplitMix64's finalizer (`_mix`) mixes the seed, the step and the high half of the number into two
  keys of 32 bits. Its rounds are a bijection, so no two steps have the same keys;
- the low half is combined with a key and scrambled by a bijection of 32 bits (`_scramble`), twice,
  and the high half of the result is taken.
"""

from __future__ import annotations

import torch

from memtide._memory.tensor_layout import is_dense

_BLOCK = 1 << 20  # The elements that are rounded at a time; temporary tensors take 50 MiB.
_WORD = 2**32 - 1
_LONG = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # The increment of SplitMix64.


def stochastic_round(
    values: torch.Tensor, to: torch.Tensor, *, seed: int, step: int, first_element: int
) -> None:
    """Writes fp32 `values`, rounded, to the bf16 tensor `to`; infinities and NaN are preserved.

    Elements are numbered from `first_element` on, in the order of their addresses in `to`, or of
    their indices if `to` has gaps. REQUIRES: both tensors have the same layout.
    """
    if not is_dense(to):
        rounded = torch.empty(to.shape, dtype=to.dtype, device=to.device)
        numbers = {"seed": seed, "step": step, "first_element": first_element}
        stochastic_round(values.contiguous(), rounded, **numbers)
        to.copy_(rounded)
        return
    source, target = _flat(values), _flat(to).view(torch.int16)
    begin = 0
    while begin < target.numel():
        first = first_element + begin
        # The high half of a number is in the keys: a block must not cross a multiple of 2^32.
        size = min(_BLOCK, target.numel() - begin, 2**32 - (first & _WORD))
        index = torch.arange(size, device=to.device) + (first & _WORD)
        random_bits = _sixteen_bits(index, *_keys(seed, step, first >> 32))
        block = source[begin : begin + size]
        bits = block.view(torch.int32).long() & _WORD
        rounded = (bits + random_bits) >> 16
        rounded = torch.where(block.isnan(), (bits >> 16) | 0x40, rounded)
        target[begin : begin + size].copy_(rounded)  # int16 takes the low 16 bits of int64.
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
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _WORD  # int64 overflow wraps; the low 32 bits are exact.
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & _WORD
    return x ^ (x >> 15)
