"""Models under the names of other frameworks: their tensors under those of transformers' PyTorch classes.

    from_frameworks(model)    yields the model under the names that each framework's rules give

The rules of a framework serve all families. They change names and transpose matrices; the family's table then decides
whether the result is a whole model. Sources: modeling_tf_pytorch_utils.py, modeling_flax_pytorch_utils.py,
`load_tf_weights_in_bert`, `load_tf_weights_in_gpt2` and convert_rwkv_checkpoint_to_hf.py of transformers 4.57,
utils/convert_from_rwkv7.py of flash-linear-attention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.models.model import OpenModel
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

# Variables of optimizers, and counters.
_UNUSED: Final = re.compile(r"(^|/)(adam_[mv]|AdamWeightDecayOptimizer(_1)?|global_step|beta[12]_power)(/|$)")


class FrameworkNames(NamedTuple):
    """The names of one framework. `mark`: a pattern of some of its names; `rules`: patterns and their replacements, in
    order; `turned`: the ends of the names of matrices stored as [in, out]; `squeezed`: of tensors with a leading axis
    of 1; `flat`: of vectors stored with more axes; `ignored`: a pattern of tensors that no program uses; `grouped`:
    whether a file may have one variable in several groups."""

    title: str
    mark: str
    rules: tuple[tuple[str, str], ...]
    turned: tuple[str, ...] = ()
    squeezed: tuple[str, ...] = ()
    flat: tuple[str, ...] = ()
    ignored: str = r"(?!)"
    grouped: bool = False

    def fit(self, name: str, node: Node) -> Node:
        """The tensor in the layout of PyTorch's class."""
        from weighbridge.tensors.nodes import reshape, transpose

        shape = node.spec.shape
        if name.endswith(self.turned) and len(shape) == 2:
            return transpose(node)
        if name.endswith(self.flat) and max(shape, default=0) == node.spec.elements:
            return reshape(node, (node.spec.elements,))
        leading = name.endswith(self.squeezed) and len(shape) > 1 and shape[0] == 1
        return reshape(node, shape[1:]) if leading else node

    def renamed(self, name: str) -> str:
        for pattern, new in self.rules:
            name = re.sub(pattern, new, name)
        return name

    def apply(self, model: OpenModel) -> OpenModel | None:
        """The model under the new names; None if two tensors would have the same one."""
        nodes: dict[str, Node] = {}
        dropped: list[Dropped] = []
        for name, node in model.stored.items():
            new = self.renamed(name)
            if re.search(self.ignored, name):
                dropped.append(Dropped(name, "unused", "is used by no program", 1, node.spec.nbytes))
            elif (unused := _UNUSED.search(name)) or (self.grouped and new in nodes):
                part, why = (
                    ("optimizer", "named as TensorFlow's optimizers do") if unused else ("copy", f"is {new}, too")
                )
                dropped.append(Dropped(name, part, why, 1, node.spec.nbytes))
            elif new in nodes:
                return None
            else:
                nodes[new] = self.fit(name, node)
        return replace(with_nodes(model, nodes), left_out=(*model.left_out, *dropped))


#: The frameworks. Those of TensorFlow have paths with slashes.
FRAMEWORKS: Final = (
    FrameworkNames(
        "OpenAI's GPT-2 for TensorFlow", r"^model/h\d+/",
        ((r"^model/", ""), (r"^h(\d+)/", r"h.\1/"), (r"/[wg]$", "/weight"), (r"/b$", "/bias"),
         (r"^(wte|wpe)$", r"\1/weight"), ("/", ".")),
        squeezed=("/w",),
    ),
    FrameworkNames(
        "TensorFlow 1", r"/layer_\d+/",
        ((r"/layer_(\d+)/", r"/layer/\1/"), (r"/(kernel|gamma|output_weights)$", "/weight"),
         (r"/(beta|output_bias)$", "/bias"), (r"_embeddings$", "_embeddings/weight"), ("/", ".")),
        turned=("/kernel",),
    ),
    FrameworkNames(
        "transformers' TensorFlow classes", r":0$",
        ((r":0$", ""), (r"^[^/]+/[^/]+/", ""), (r"(^|/)[^/]*___([^/]*)/", r"\1\2/"), (r"_\._", "/"), (r"//+", "/"),
         (r"/(kernel|embeddings|gamma)$", "/weight"), (r"/beta$", "/bias"), ("/", ".")),
        turned=("/kernel:0",), squeezed=("/bias:0",), grouped=True,
    ),
    FrameworkNames(
        "Flax", r"\.(kernel|embedding)$",  # packed weights have scales, too
        ((r"^params\.", ""), (r"\.(kernel|scale|embedding)$", ".weight")),
        turned=(".kernel",),
    ),
    FrameworkNames(
        "RWKV 6's own files", r"^blocks\.\d+\.att\.time_faaaa$",
        ((r"^(?!head\.)", "rwkv."), (r"\.emb\.", ".embeddings."), (r"\.ln0\.", ".pre_ln."), (r"\.att\.", ".attention."),
         (r"\.ffn\.", ".feed_forward.")),
    ),
    FrameworkNames(
        "RWKV 7's own files", r"^blocks\.\d+\.att\.r_k$",
        ((r"^emb\.", "model.embeddings."), (r"^ln_out\.", "model.norm."), (r"^head\.", "lm_head."),
         (r"^blocks\.", "model.layers."), (r"\.ln0\.", ".pre_norm."), (r"\.ln1\.", ".attn_norm."),
         (r"\.ln2\.", ".ffn_norm."), (r"\.att\.([wavg])0$", r".attn.\1_lora.lora.2.bias"),
         (r"\.att\.([wavg])1$", r".attn.\1_lora.lora.0.weight"), (r"\.att\.([wavg])2$", r".attn.\1_lora.lora.2.weight"),
         (r"\.att\.ln_x\.", ".attn.g_norm."), (r"\.att\.([rkvo])(eceptance|ey|alue|utput)\.", r".attn.\1_proj."),
         (r"\.att\.", ".attn.")),
        turned=tuple(f".att.{part}{number}" for part in "wavg" for number in "12"),
        flat=(*(f".att.{part}0" for part in "wavg"), ".att.k_k", ".att.k_a", ".ffn.x_k"),
        ignored=r"^blocks\.0\.att\.v[012]$",
    ),
)  # fmt: skip


def from_frameworks(model: OpenModel) -> Iterator[tuple[OpenModel, str]]:
    """Yields the model under the names of transformers' PyTorch classes, and a note, for each framework whose names it
    may have."""
    for framework in FRAMEWORKS:
        if any(re.search(framework.mark, entry.name) for entry in model.index):
            renamed = framework.apply(model)
            if renamed is not None:
                yield renamed, f"the names of {framework.title} are replaced by those of the family"
