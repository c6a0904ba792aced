"""The two ends of a model: what comes before its first layer and after its last one."""

from __future__ import annotations

from dataclasses import dataclass, field

from memtide._plan_file.model import Block

from memtide_plan.models.layer import Matrix, Norm, Saving

_TOKEN_BYTES = 8  # Numbers of tokens are 64-bit integers.
_LOSS_ELEMENT_BYTES = 4  # Losses are computed in float32.


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Tables that are looked up, and what follows them before the first layer."""

    width: int
    tables: int  # Elements of all tables.
    matrices: tuple[Matrix, ...] = ()  # Patches of an image, or a projection to the width.
    norm: Norm | None = None
    dropout: bool = False  # A mask of a byte for each element.
    input_bytes_per_token: int = _TOKEN_BYTES  # Bytes of a token's number, or of a patch.

    def block(self, saving: Saving) -> Block:
        """It as a block."""
        parameters = self.tables + sum(matrix.parameters() for matrix in self.matrices)
        rest = 0
        if self.norm is not None:
            parameters += self.norm.parameters(self.width)
            rest += self.width * saving.element_bytes + self.norm.statistics_bytes()
        if self.dropout:
            rest += self.width
        is_trained = not saving.lora_rank
        return Block(
            name="embedding",
            parameters=parameters,
            trained_parameters=parameters if is_trained else 0,
            flop_per_token=sum(matrix.flop() for matrix in self.matrices),
            products=tuple(m.product(trained=not saving.lora_rank) for m in self.matrices),
            input_bytes_per_token=self.input_bytes_per_token,
            rest_bytes_per_token=rest if is_trained else 0,
            recomputable=False,
        )


@dataclass(frozen=True, kw_only=True)
class Head:
    """The norm and matrices after the last layer, and the loss."""

    width: int
    norm: Norm | None = None  # Its input is the last layer's result.
    matrices: tuple[Matrix, ...] = field(default=())  # One after another, for each token.
    vocabulary: int = 0  # Logits for each token, of which the loss saves a softmax; 0: none.
    # The last of `matrices` is the embedding's table, and has only a bias of its own.
    tied: bool = False
    between: Norm | None = None  # After an activation function, between two matrices.
    # Elements that compute for one token of a sequence alone, such as a pooler's.
    others: int = 0

    def block(self, saving: Saving) -> Block:
        """It as a block."""
        parameters = self.others + sum(matrix.parameters() for matrix in self.matrices)
        if self.tied:
            parameters -= self.matrices[-1].inputs * self.matrices[-1].outputs
        norms = [norm for norm in (self.norm, self.between) if norm is not None]
        parameters += sum(norm.parameters(self.width) for norm in norms)
        return Block(
            name="head",
            parameters=parameters,
            trained_parameters=0 if saving.lora_rank else parameters,
            flop_per_token=sum(matrix.flop() for matrix in self.matrices),
            products=tuple(m.product(trained=not saving.lora_rank) for m in self.matrices),
            input_bytes_per_token=self.width * saving.element_bytes,
            rest_bytes_per_token=self._rest(norms, saving),
            recomputable=False,
        )

    def _rest(self, norms: list[Norm], saving: Saving) -> int:
        saves_inputs = saving.saves_input("head")
        saved = sum(norm.statistics_bytes() for norm in norms)
        # A loss that is fused with the last matrix saves the gradient of that one's input.
        saves = saves_inputs or saving.fused
        tensors = int(saves and self.norm is not None and bool(self.matrices))
        if (
            self.between is not None
        ):  # The activation function's input and its result, and a norm's.
            tensors += 2 + saves
        saved += tensors * self.width * saving.element_bytes
        if self.vocabulary:
            saved += _TOKEN_BYTES
            each = saving.element_bytes if saving.in_pieces else _LOSS_ELEMENT_BYTES
            saved += self.vocabulary * each * (not saving.fused)
        return saved
