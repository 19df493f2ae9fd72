"""Titles, facts and shapes of the operators of a layer, from its tensors and the model's settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, without_leading_ones
from weighbridge.base.words import plural
from weighbridge.forward.graph import Graph
from weighbridge.forward.operators import flow as flows
from weighbridge.forward.operators.model import Operator

_EMBEDDINGS: Final = ("embed", "position", "types", "next.embed", "further.embed")
_QUERY: Final = ("attention.q", "attention.q_b", "cross.q")
_KEYS: Final = ("attention.k", "attention.v", "cross.k", "cross.v")
#: A function -> the matrix that reads its result.
_READ_BY: Final = MappingProxyType({"scan": ("ssm.out",), "delta_rule": ("delta.out", "attention.o"),
                                    "gate_half": ("ssm.out",)})  # fmt: skip
_NAMES: Final = MappingProxyType({
    "silu": "SiLU", "gelu": "GELU", "gelu_new": "GELU, by tanh", "gelu_pytorch_tanh": "GELU, by tanh",
    "gelu_fast": "GELU, by tanh", "relu": "ReLU", "relu2": "ReLU, squared", "gated-gelu": "GELU, by tanh",
    "sigmoid": "sigmoid", "swish": "SiLU", "xielu": "xIELU", "gelu_python": "GELU",
})  # fmt: skip


@dataclass(frozen=True)
class LayerFacts:
    """One layer (-1: outside of layers). `shapes`: of its tensors, by canonical role."""

    graph: Graph
    shapes: Mapping[str, Shape]
    layer: int

    @property
    def dim(self) -> int:
        return int(self.graph.config.dim)

    @property
    def residual(self) -> tuple[str, ...]:
        """The facts of a residual sum."""
        scale = self.graph.config.residual_scale
        return (f"× {number(scale)}",) if scale and scale != 1 else ()

    @property
    def heads(self) -> tuple[int, int]:
        return self.graph.heads(max(self.layer, 0))

    def outside_shape(self, word: str) -> Shape:
        """The shape of an input: a number, or states."""
        is_number = word != "encoder" and not (word == "next_token" and not self._has_own_embeddings())
        return () if is_number else (self.dim,)

    def outside_title(self, word: str) -> str:
        title = flows.functions().outside[word]
        return title if word != "next_token" or self._has_own_embeddings() else f"embedding of the {title}"

    def _has_own_embeddings(self) -> bool:
        return bool({"next.embed.weight", "further.embed.weight"} & self.shapes.keys())

    def frame_title(self, name: str) -> str:
        title = flows.functions().frame.get(name, name.replace("_", " "))
        experts = self._matrix("moe.experts.up")
        return f"{experts[0]:,} {title.lower()}" if name == "experts" and experts is not None else title

    def describe(self, word: flows.Word, name: str, inputs: Sequence[Shape] | None) -> Operator:
        """Returns the operator of a word. `inputs`: the shapes that it reads; None if one isn't known."""
        row = flows.functions().function.get(word.word)
        part = word.word.partition(".")[0]
        if row is not None:
            title, facts = self._function(word.word, row.title)
            return Operator(name, row.kind, title, word.roles, facts, self._result(word.word, row.kind, inputs), part)
        matrix = self._matrix(word.word)
        kind = _kind(word.word)
        spelled = word.word.partition(".")[2].replace(".", " ").replace("_", " ") or word.word
        title = flows.functions().title.get(word.word) or (
            "norm" if word.word.rpartition(".")[2] == "norm" else spelled
        )
        bias = any(role.endswith(".bias") for role in word.roles)
        shape = self._output(word.word, kind, matrix, inputs)
        if kind == "linear" and matrix is not None and len(matrix) > 1 and shape == matrix[-1:] != matrix[-2:-1]:
            matrix = (matrix[-1], matrix[-2])
        facts = self._norm_facts(bias) if kind == "norm" else self._matrix_facts(word.word, matrix, bias)
        adapters = ("adapters",) if any(role.endswith(".lora.a") for role in word.roles) else ()
        return Operator(name, kind, title, word.roles, (*facts, *adapters), shape, part)

    def _matrix(self, stem: str) -> Shape | None:
        return self.shapes.get(f"{stem}.weight", self.shapes.get(stem))

    def _norm_facts(self, bias: bool) -> tuple[str, ...]:
        config, row = self.graph.config, self.graph.row
        is_layer = "layer" in (config.norm, row.norm) or row.plain_norms
        eps = f", ε {number(config.norm_eps)}" if config.norm_eps else ""
        return (f"{'mean and variance' if is_layer else 'RMS'}{eps}", *(("bias",) if bias else ()),
                *(("without weights",) if row.plain_norms else ()))  # fmt: skip

    def _matrix_facts(self, word: str, matrix: Shape | None, bias: bool) -> tuple[str, ...]:
        if word == "head" and matrix is None:
            return ("the embeddings again",)
        if matrix is None:
            return ("bias",) if bias else ()
        matrix = without_leading_ones(matrix)
        if "conv" in word.split("."):
            taps = f"{matrix[-1]} taps"
            return (taps, "bias") if bias else (taps,)
        if len(matrix) < 2:
            return (str(matrix[0]),) if matrix else ()
        if word in _EMBEDDINGS:
            scale = self.graph.embedding_scale if word == "embed" else 1.0
            return (f"{matrix[-2]} × {matrix[-1]}", *((f"× {number(scale)}",) if scale != 1 else ()))
        turned = (f"{matrix[-1]} → {matrix[-2]}",)
        return (*turned, "bias") if bias else turned

    def _output(self, word: str, kind: str, matrix: Shape | None, inputs: Sequence[Shape] | None) -> Shape | None:
        """The shape of a weight's result."""
        if word == "attention.kv_a.norm" and matrix is not None:
            return matrix  # the rest of its input is the key that rotates
        if kind == "norm" or matrix is None or len(matrix) < 2:
            return _widest(inputs)
        if kind == "convolution":
            return _joined(inputs)
        if kind == "embedding":
            return (matrix[-1],)
        if word == "moe.experts.down" and inputs and _joined(inputs) == matrix[-2:-1]:
            return matrix[-1:]  # DBRX has the columns of its experts as rows
        out = matrix[-2]
        if word in ("attention.k_b", "attention.v_b"):
            return (matrix[0], out)
        q, kv = self.heads
        heads = q if word in _QUERY else kv if word in _KEYS else 0
        return (heads, out // heads) if heads and out % heads == 0 else (out,)

    def _result(self, word: str, kind: str, inputs: Sequence[Shape] | None) -> Shape | None:
        """The shape of a function's result."""
        if word in _READ_BY:
            read = next((m for stem in _READ_BY[word] if (m := self._matrix(stem)) is not None), None)
            return None if read is None else (read[-1],)
        if word in _SHAPES:
            return _SHAPES[word](self)
        if kind in ("sign", "norm") or word in ("weigh", "weigh_input", "add_experts"):
            return _widest(inputs)
        return _joined(inputs)

    def _function(self, word: str, title: str) -> tuple[str, tuple[str, ...]]:
        """The title and facts of a function."""
        if word == "expert_activation" and self.graph.row.gated == "clamped":
            return "SwiGLU, clamped", ()
        if word in ("activation", "expert_activation"):
            return _NAMES.get(self.graph.activation, self.graph.activation), ()
        return title, _FACTS[word](self) if word in _FACTS else ()

    def _attend_facts(self) -> tuple[str, ...]:
        graph, config, (q, kv) = self.graph, self.graph.config, self.heads
        latent = self._matrix("attention.kv_a") is not None
        out = [plural(q, "head") if kv == q or latent else f"{plural(q, 'head')}, {kv:,} of keys and values"]
        if graph.is_sliding(self.layer):
            out.append(f"window of {graph.window:,}")
        if config.attention_softcap:
            out.append(f"soft cap {number(config.attention_softcap)}")
        if "attention.sinks" in self.shapes:
            out.append("sinks")
        if config.keys.get("attention.max_alibi_bias") or graph.row.alibi:
            out.append("linear bias by distance")
        if not config.keys.get("attention.causal", True):
            out.append("both directions")
        return tuple(out)

    def _rope_facts(self) -> tuple[str, ...]:
        rope = self.graph.config.rope
        if rope is None:
            return ()
        rope = rope.sliding if rope.sliding is not None and self.graph.is_sliding(self.layer) else rope
        out = [f"base {number(rope.theta)}"]
        head = self.graph.config.head_dim
        if head and rope.dim != head and self._matrix("attention.kv_a") is None:
            out.append(f"{rope.dim} of {head}")
        if rope.type != "default":
            factor = rope.parameters.get("factor")
            out.append(f"{rope.type} × {number(factor)}" if isinstance(factor, (int, float)) else rope.type)
        return tuple(out)

    def _choice_facts(self) -> tuple[str, ...]:
        config = self.graph.config
        used, count = config.experts_used, config.experts
        return (f"{used:,} of {count:,}",) if isinstance(used, int) and isinstance(count, int) else ()

    def _qkv(self) -> tuple[int, int, int] | None:
        """Heads of queries, of keys, and the width of a head in a joint matrix."""
        matrix, (q, kv) = self._matrix("attention.qkv"), self.heads
        return None if matrix is None or matrix[-2] % (q + 2 * kv) else (q, kv, matrix[-2] // (q + 2 * kv))

    def _query_shape(self) -> Shape | None:
        if (joint := self._qkv()) is not None:
            return joint[0], joint[2]
        q = self._matrix("attention.q")
        return (self.heads[0], q[-2] // self.heads[0] // 2) if q is not None else None  # half of it is the gate

    def _key_shape(self) -> Shape | None:
        joint = self._qkv()
        return (joint[1], joint[2]) if joint is not None else None

    def _attend_shape(self) -> Shape | None:
        q, kv = self.heads
        v, o = self._matrix("attention.v"), self._matrix("attention.o")
        if (joint := self._qkv()) is not None:
            width = joint[2]
        elif (v_b := self._matrix("attention.v_b")) is not None:
            width = v_b[1]
        elif v is not None and v[-2] % kv == 0:
            width = v[-2] // kv
        else:
            width = 0 if o is None else o[-1] // q
        return (q, width) if width else None

    def _cross_shape(self) -> Shape | None:
        v = self._matrix("cross.v")
        return (self.heads[0], v[-2] // self.heads[0]) if v is not None and v[-2] % self.heads[0] == 0 else None

    def _share(self, stem: str, parts: int) -> Shape | None:
        matrix = self._matrix(stem)
        return None if matrix is None else (matrix[-2] // parts,)

    def _state_half(self) -> Shape | None:
        if (conv := self._matrix("ssm.conv")) is not None:
            return (conv[0],)
        return self._share("conv.in", 3)

    def _steps(self) -> Shape | None:
        if (dt := self._matrix("ssm.dt")) is not None:
            return (dt[-1],)
        bias = self.shapes.get("ssm.dt.bias")
        return None if bias is None else tuple(bias)

    def _state_matrix(self) -> Shape | None:
        x, steps = self._matrix("ssm.x"), self._steps()
        return None if x is None or steps is None else ((x[-2] - steps[0]) // 2,)

    def _rope_key_shape(self) -> Shape | None:
        down, norm = self._matrix("attention.kv_a"), self._matrix("attention.kv_a.norm")
        return None if down is None or norm is None else (down[-2] - norm[0],)

    def _halves(self, stem: str) -> Shape | None:
        ba = self._matrix(stem)
        return None if ba is None else (ba[-2] // 2,)

    def _chosen(self) -> Shape | None:
        used = self.graph.config.experts_used
        return (used,) if isinstance(used, int) else None


_SHAPES: Final[Mapping[str, Callable[[LayerFacts], Shape | None]]] = MappingProxyType({
    "query": LayerFacts._query_shape, "key": LayerFacts._key_shape, "value": LayerFacts._key_shape,
    "attend": LayerFacts._attend_shape, "sigmoid_gate": LayerFacts._attend_shape,
    "attend_encoder": LayerFacts._cross_shape, "choose": LayerFacts._chosen, "top_k": lambda _: None,
    "rope_key": LayerFacts._rope_key_shape, "state_half": LayerFacts._state_half, "step": LayerFacts._steps,
    "input_matrix": LayerFacts._state_matrix, "output_matrix": LayerFacts._state_matrix,
    "output_gate": LayerFacts._state_half, "input_gate": LayerFacts._state_half,
    "first_half": lambda facts: facts._share("mlp.gate_up", 2),
    "second_half": lambda facts: facts._share("mlp.gate_up", 2),
    "beta_half": lambda facts: facts._halves("delta.ba"), "decay_half": lambda facts: facts._halves("delta.ba"),
})  # fmt: skip
_FACTS: Final[Mapping[str, Callable[[LayerFacts], tuple[str, ...]]]] = MappingProxyType({
    "attend": LayerFacts._attend_facts, "rope": LayerFacts._rope_facts, "rope_part": LayerFacts._rope_facts,
    "choose": LayerFacts._choice_facts,
    "softcap": lambda facts: (number(facts.graph.config.logit_softcap or 0),),
})  # fmt: skip


def _kind(word: str) -> str:
    """The kind of operator that a weight belongs to."""
    if word in _EMBEDDINGS:
        return "embedding"
    if word.endswith("norm"):
        return "norm"
    return "convolution" if "conv" in word.split(".")[1:] and not word.endswith((".in", ".out")) else "linear"


def _widest(inputs: Sequence[Shape] | None) -> Shape | None:
    return max(inputs, key=math.prod) if inputs else None


def _joined(inputs: Sequence[Shape] | None) -> Shape | None:
    """The shape of several values side by side."""
    if not inputs:
        return None
    return inputs[0] if len(inputs) == 1 else (sum(map(math.prod, inputs)),)


def number(value: float) -> str:
    """A setting with few digits."""
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}".replace("e-0", "e-")
