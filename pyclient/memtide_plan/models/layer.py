"""One layer of a transformer: its matrices, and from them its parameters, operations and bytes.

The tensors that autograd saves follow from the operations: a product of matrices saves its input
for the gradient of its weight, a norm its input and its statistics, an activation function its
input (ReLU its result), an elementwise product both factors, fused attention its three inputs, its
result and a number for each head and token. A tensor that two operations save counts once. A matrix
that is frozen does not save its input.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from memtide._plan_file.model import Block, Product

_STATISTIC_BYTES = 4  # Norms and attention have float32 statistics in every compute type.
_INDEX_BYTES = 8
# Bytes of memory that an RMSNorm and a rotary embedding in float32 pass for an element, beside
# twice those that they save: the first is seven operations of 36 bytes, of which ten bytes are
# saved, the second ten of 48, of which two are.
_PLAIN_NORM_BYTES, _PLAIN_ROTARY_BYTES = 16, 44


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A linear layer, or `count` equal ones of which `active` compute for a token."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    count: int = 1
    active: int = 1

    def parameters(self) -> int:
        """Elements of all of them, with biases."""
        return self.count * (self.inputs * self.outputs + self.bias * self.outputs)

    def flop(self) -> int:
        """Operations of a forward pass, for a token."""
        return 2 * self.active * self.inputs * self.outputs

    def product(self, *, trained: bool) -> Product:
        """The products that it computes."""
        return Product(
            inputs=self.inputs,
            outputs=self.outputs,
            count=self.count,
            active=self.active,
            trained=trained,
        )

    def adapter_products(self, rank: int) -> tuple[Product, Product]:
        """The products that its adapter computes."""
        narrow = replace(self.product(trained=True), outputs=rank)
        return narrow, replace(narrow, inputs=rank, outputs=self.outputs)

    def adapter(self, rank: int) -> int:
        """Elements of adapters of this rank, for all of them."""
        return self.count * rank * (self.inputs + self.outputs)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm over the width of a layer."""

    bias: bool = False  # True: LayerNorm; its statistics are two numbers. False: RMSNorm, one.

    def parameters(self, width: int) -> int:
        """Elements of its weight and bias."""
        return width * (1 + self.bias)

    def statistics_bytes(self) -> int:
        """Bytes that it saves beside its input, for a token."""
        return _STATISTIC_BYTES * (1 + self.bias)


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Two matrices with an activation function between them, or three: down(act(gate) * up)."""

    inner: int
    gated: bool = True
    relu: bool = False  # ReLU saves its result, which the next matrix saves anyway.
    bias: bool = False

    def matrices(self, width: int, *, count: int = 1, active: int = 1) -> tuple[Matrix, ...]:
        """Its matrices, with `count` experts of which `active` compute for a token."""
        ups = ("gate", "up") if self.gated else ("up",)
        shapes = [(name, width, self.inner) for name in ups] + [("down", self.inner, width)]
        return tuple(
            Matrix(name=name, inputs=i, outputs=o, bias=self.bias, count=count, active=active)
            for name, i, o in shapes
        )

    def saved_elements(self, *, fused: bool, saves_down: bool) -> int:
        """Elements that it saves for a token, without its input."""
        if not self.gated:
            return self.inner * (1 + (saves_down and not fused and not self.relu))
        return self.inner * (2 if fused else 3 + saves_down)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts in the place of an Mlp: all are parameters, `active` compute."""

    count: int
    active: int
    # The inner width of an expert that computes for every token, with a gate; 0: there is none.
    shared_inner: int = 0


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The settings that decide which tensors of a layer autograd saves."""

    element_bytes: int
    fused: bool  # As Options.kernels says.
    plain: bool = False
    in_pieces: bool = False
    lora_rank: int = 0
    lora_targets: Collection[str] = ()
    lora_merged: bool = False

    def saves_input(self, *names: str) -> bool:
        """Whether one of these matrices, which have one input, saves it."""
        return not self.lora_rank or any(name in self.lora_targets for name in names)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of a transformer. `norms`: "before" attention and Mlp each, "after" each, "both", or
    "parallel": before attention and before an Mlp that is given the same input."""

    width: int
    heads: int
    head_width: int
    key_heads: int
    mlp: Mlp
    experts: Experts | None = None
    norm: Norm = Norm()
    norms: str = "before"
    head_norms: bool = False  # Queries and keys have RMSNorms over the width of a head.
    qkv_bias: bool = False
    out_bias: bool = False
    dropout: bool = False  # After attention and after the Mlp; a mask of a byte for each element.

    def matrices(self) -> tuple[Matrix, ...]:
        """All linear layers."""
        query, key = self.heads * self.head_width, self.key_heads * self.head_width
        attention = [
            Matrix(name=name, inputs=self.width, outputs=outputs, bias=self.qkv_bias)
            for name, outputs in (("q", query), ("k", key), ("v", key))
        ]
        attention.append(Matrix(name="o", inputs=query, outputs=self.width, bias=self.out_bias))
        return (*attention, *self._mlp_matrices())

    def _mlp_matrices(self) -> tuple[Matrix, ...]:
        if self.experts is None:
            return self.mlp.matrices(self.width)
        count, active = self.experts.count, self.experts.active
        matrices = (
            Matrix(name="router", inputs=self.width, outputs=count),
            *self.mlp.matrices(self.width, count=count, active=active),
        )
        if not self.experts.shared_inner:
            return matrices
        gate = Matrix(name="shared gate", inputs=self.width, outputs=1)
        return (*matrices, *self._shared().matrices(self.width), gate)

    def _shared(self) -> Mlp:
        assert self.experts is not None
        return Mlp(inner=self.experts.shared_inner, gated=self.mlp.gated, bias=self.mlp.bias)

    def parameters(self) -> int:
        """Elements of one layer."""
        norms = 4 if self.norms == "both" else 2
        heads = 2 * self.head_width if self.head_norms else 0
        matrices = sum(matrix.parameters() for matrix in self.matrices())
        return matrices + norms * self.norm.parameters(self.width) + heads

    def block(self, name: str, count: int, saving: Saving) -> Block:
        """`count` of these layers in a row."""
        matrices = self.matrices()
        adapted = [m for m in matrices if saving.lora_rank and m.name in saving.lora_targets]
        adapters = sum(matrix.adapter(saving.lora_rank) for matrix in adapted)
        flop = sum(matrix.flop() for matrix in matrices)
        for matrix in adapted:
            flop += 2 * matrix.active * saving.lora_rank * (matrix.inputs + matrix.outputs)
        attention = self.heads * self.head_width
        narrow = sum(matrix.active * saving.lora_rank for matrix in adapted)
        products = [matrix.product(trained=not saving.lora_rank) for matrix in matrices]
        if not saving.lora_merged:
            for matrix in adapted:
                products += matrix.adapter_products(saving.lora_rank)
        forward_bytes, backward_bytes = self._beside(adapted, saving)
        return Block(
            name=name,
            count=count,
            parameters=self.parameters() + adapters,
            trained_parameters=adapters if saving.lora_rank else self.parameters(),
            flop_per_token=flop,
            products=tuple(products),
            beside_forward_bytes_per_token=forward_bytes,
            beside_backward_bytes_per_token=backward_bytes,
            flop_per_token_pair=4 * attention,
            input_bytes_per_token=self.width * saving.element_bytes,
            attention_bytes_per_token=(
                attention * saving.element_bytes + self.heads * _STATISTIC_BYTES
            ),
            rest_bytes_per_token=(
                self._attention_rest(saving)
                + self._mlp_rest(saving)
                + self._between(saving)
                + narrow * saving.element_bytes
            ),
        )

    def _beside(self, adapted: Collection[Matrix], saving: Saving) -> tuple[int, int]:
        """Bytes that pass memory in a forward and in a backward pass, beside those of products and
        of what is saved."""
        size = saving.element_bytes
        inputs = sum(matrix.active * matrix.inputs for matrix in adapted) * size
        results = sum(matrix.active * matrix.outputs for matrix in adapted) * size
        # A sum reads two and writes one, and the gradient of a scaled result is read and written.
        forward, backward = 3 * results, 3 * inputs + 2 * results
        if saving.lora_merged:
            # The gradients of both factors read what the matrix was given, and its result's
            # gradient, twice each.
            forward, backward = 0, 2 * inputs + 2 * results
        if saving.plain:
            rotated = (self.heads + self.key_heads) * self.head_width
            one_by_one = _PLAIN_ROTARY_BYTES * rotated
            if not self.norm.bias:
                one_by_one += (4 if self.norms == "both" else 2) * _PLAIN_NORM_BYTES * self.width
            forward, backward = forward + one_by_one, backward + 2 * one_by_one
        return forward, backward

    def _attention_rest(self, saving: Saving) -> int:
        """Bytes of queries, keys and values, and of what the norms of heads were given."""
        query, key = self.heads * self.head_width, self.key_heads * self.head_width
        saved = (query + 2 * key) * saving.element_bytes
        if saving.plain:  # Values are a part of the result that has queries and keys, too.
            saved += (query + key) * saving.element_bytes
        if self.head_norms:
            saved += (query + key) * saving.element_bytes * (not saving.fused)
            saved += (self.heads + self.key_heads) * _STATISTIC_BYTES
        return saved

    def _between(self, saving: Saving) -> int:
        """Bytes that norms, sums and dropout save, without the layer's input: the tensors of the
        layer's width."""
        ups = [matrix.name for matrix in self._mlp_matrices() if matrix.name not in ("down", "")]
        first = saving.saves_input("q", "k", "v") and not saving.fused
        second = saving.saves_input(*ups) and not saving.fused
        # The inputs of norms, and the results of norms that a matrix saves.
        tensors = {
            "before": 1 + first + second,
            "parallel": first + second,
            "after": 2 + second,
            "both": 3 + first + second,
        }[self.norms]
        norms = 4 if self.norms == "both" else 2
        statistics = norms * self.norm.statistics_bytes()
        masks = 2 * self.width if self.dropout else 0
        if saving.plain:
            statistics += norms * self._copied(saving)
            masks += self.width * (saving.lora_rank > 0 and first)  # Adapters drop out inputs.
        return tensors * self.width * saving.element_bytes + statistics + masks

    def _copied(self, saving: Saving) -> int:
        """Bytes that a plain RMSNorm saves in float32: its input in the place of that in the
        compute type, and what its weight is multiplied with where that is trained."""
        if self.norm.bias:
            return 0
        copied = _STATISTIC_BYTES - saving.element_bytes
        return self.width * (copied + (0 if saving.lora_rank else _STATISTIC_BYTES))

    def _mlp_rest(self, saving: Saving) -> int:
        saves_down = saving.saves_input("down")
        one = self.mlp.saved_elements(fused=saving.fused, saves_down=saves_down)
        if self.experts is None:
            return one * saving.element_bytes
        active, width = self.experts.active, self.width
        # The router's softmax is in float32. Indices: the experts that were chosen, and the place
        # and the token of each choice.
        if saving.fused:
            elements, router = active * (one + 1) + self.experts.count, active * _INDEX_BYTES
        else:
            # A token's input is copied for each of its experts. Each result is saved for its
            # product with the router's weight, and that product for the sum.
            copied = saving.saves_input("gate", "up")
            elements = active * (one + width * (2 + copied) + 1)
            router = self.experts.count * _STATISTIC_BYTES + 3 * active * _INDEX_BYTES
        if self.experts.shared_inner:
            shared = self._shared().saved_elements(fused=saving.fused, saves_down=saves_down)
            elements += shared + width + 1
        return elements * saving.element_bytes + router
