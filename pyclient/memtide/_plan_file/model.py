"""A plan's model: its blocks in the order of their forward passes, in numbers that do not depend on
a machine, a batch or a length of sequence.

One model is described once, by a Hugging Face config.json, by a script's modules or by a trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of a token's activations and a matrix, or `count` equal ones of which `active`
    compute for a token."""

    inputs: int
    outputs: int
    count: int = 1
    active: int = 1
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class Block:
    """`count` equal parts of a model in a row, such as its transformer layers. The embedding and
    the head are blocks of their own, with a count of 1."""

    name: str
    count: int = 1
    parameters: int  # Elements of one.
    trained_parameters: int  # At most `parameters`: the others are frozen.
    # A forward pass of one, for a token: two for each multiplication of products of matrices,
    # without those between two activations.
    flop_per_token: float
    # Its products, one by one. Empty: not known, and they reach what large ones do.
    products: tuple[Product, ...] = ()
    # Bytes of memory that operations pass for a token, beside products and saved tensors: sums of
    # adapters, and operations that plain modules do one by one.
    beside_forward_bytes_per_token: float = 0.0
    beside_backward_bytes_per_token: float = 0.0
    # The same for products between activations (attention), for a token and each token that it
    # attends to. A causal model attends to half of the sequence.
    flop_per_token_pair: float = 0.0
    # Bytes that autograd holds of a forward pass until its backward pass, for a token: the block's
    # input, the results of fused attention, and the rest.
    input_bytes_per_token: float
    attention_bytes_per_token: float = 0.0
    rest_bytes_per_token: float = 0.0
    # False: its results are not computed again in a backward pass, as a head's are not.
    recomputable: bool = True
    # Measured seconds of one's passes, for a token, on the machine and with the batch of a trace;
    # waits for chunks are not in them. None: not measured.
    forward_s_per_token: float | None = None
    backward_s_per_token: float | None = None

    def saved_bytes_per_token(self) -> float:
        """All that autograd holds of one, for a token."""
        return (
            self.input_bytes_per_token + self.attention_bytes_per_token + self.rest_bytes_per_token
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, and how long its sequences may be."""

    name: str
    blocks: tuple[Block, ...]
    causal: bool = True
    longest_sequence: int | None = None  # None: not known.

    def parameters(self) -> int:
        """Elements of all parameters; tied ones count once."""
        return sum(block.count * block.parameters for block in self.blocks)

    def trained_parameters(self) -> int:
        """Elements of the parameters that are trained."""
        return sum(block.count * block.trained_parameters for block in self.blocks)

    def each_block(self) -> Iterator[Block]:
        """Every block as often as the model has it, in the order of forward passes."""
        for block in self.blocks:
            for _ in range(block.count):
                yield block
