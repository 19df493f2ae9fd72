"""Models under the names of other frameworks: their tensors under those of transformers' PyTorch classes.

    from_frameworks(model)    yields the model under the names that each framework's rules give

The rules of a framework serve all families. They change names and transpose matrices; the family's table then decides
whether the result is a whole model. Sources: modeling_tf_pytorch_utils.py, modeling_flax_pytorch_utils.py,
`load_tf_weights_in_bert` and `load_tf_weights_in_gpt2` of transformers 4.57.
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
    order; `turned`: the end of the names of matrices stored as [in, out]; `squeezed`: of tensors with a leading axis of
    1; `grouped`: whether a file may have one variable in several groups."""

    title: str
    mark: str
    rules: tuple[tuple[str, str], ...]
    turned: str = ""
    squeezed: str = ""
    grouped: bool = False

    def fit(self, name: str, node: Node) -> Node:
        """The tensor in the layout of PyTorch's class."""
        from weighbridge.tensors.nodes import reshape, transpose

        shape = node.spec.shape
        if self.turned and name.endswith(self.turned) and len(shape) == 2:
            return transpose(node)
        leading = self.squeezed and name.endswith(self.squeezed) and len(shape) > 1 and shape[0] == 1
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
            if (unused := _UNUSED.search(name)) or (self.grouped and new in nodes):
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
        squeezed="/w",
    ),
    FrameworkNames(
        "TensorFlow 1", r"/layer_\d+/",
        ((r"/layer_(\d+)/", r"/layer/\1/"), (r"/(kernel|gamma|output_weights)$", "/weight"),
         (r"/(beta|output_bias)$", "/bias"), (r"_embeddings$", "_embeddings/weight"), ("/", ".")),
        turned="/kernel",
    ),
    FrameworkNames(
        "transformers' TensorFlow classes", r":0$",
        ((r":0$", ""), (r"^[^/]+/[^/]+/", ""), (r"(^|/)[^/]*___([^/]*)/", r"\1\2/"), (r"_\._", "/"), (r"//+", "/"),
         (r"/(kernel|embeddings|gamma)$", "/weight"), (r"/beta$", "/bias"), ("/", ".")),
        turned="/kernel:0", squeezed="/bias:0", grouped=True,
    ),
    FrameworkNames(
        "Flax", r"\.(kernel|embedding)$",  # packed weights have scales, too
        ((r"^params\.", ""), (r"\.(kernel|scale|embedding)$", ".weight")),
        turned=".kernel",
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
