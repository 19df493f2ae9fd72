"""The wording of relations, which the terminal and the picture share."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from weighbridge.base.words import plural
from weighbridge.reports.lineage.model import APART, LineagePair, LineageReport, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping

WORDS: Final[Mapping[Relation, str]] = MappingProxyType(
    {
        "same": "the same values in all sampled rows",
        "quantized": "quantized",
        "fine-tuned": "fine-tuned",
        "lora-merged": "LoRA merged",
        "merged": "merged",
        "pruned": "pruned",
        "repeated": "layers repeated",
        "slices": "layers in common",
        "permuted": "the same values in another order",
        "related": "related",
        "unrelated": "unrelated",
        "different-shapes": "no matrix of one shape",
    }
)


def describe(pair: LineagePair) -> str:
    """Returns a relation in words: `quantized: BF16 to Q4_0, cosine 0.9963`."""
    return ": ".join(filter(None, (WORDS[pair.relation], _details(pair))))


def _details(pair: LineagePair) -> str:
    details = [pair.detail] if pair.detail else []
    if pair.cosine is not None and not (pair.exact and pair.cosine > 0.9999):
        details.append(f"cosine {pair.cosine:.4f}")
    return ", ".join(details)


def sentence(pair: LineagePair) -> str:
    """Returns how two models are related, and which one was made from which."""
    if pair.parent is not None:
        by = "" if pair.evidence == "weights" else f" (according to {pair.evidence})"
        return f"{pair.counterpart(pair.parent)} was made from {pair.parent}{by}: {describe(pair)}"
    unknown = "" if pair.relation in (*APART, "same") else "; which one was made from which is unknown"
    return f"{pair.a} and {pair.b}: {describe(pair)}{unknown}"


def branch_text(report: LineageReport, name: str, above: str | None, is_parent: bool) -> str:
    """Returns the tree's text next to a model: its type, or its relation to the model above."""
    model = next(model for model in report.models if model.name == name)
    if above is None:
        return f"{model.type}, {plural(model.layers, 'layer')}"
    if model.same_as is not None:
        return f"{model.type}, {WORDS['same']}"
    pair = report.pair(name, above)
    if pair.parent == name:  # the model above has another source, on which it hangs
        return f"{model.type}, a source of {above}: {_details(pair)}"
    if not is_parent:
        return f"{model.type}, {describe(pair)}"
    by = "" if model.evidence == "weights" else f", according to {model.evidence}"
    peers = [source.name for source in model.parents[1:] if source.name not in pair.detail]
    also = f", also from {', '.join(peers)}" if peers else ""
    return f"{model.type}, {describe(pair)}{also}{by}"
