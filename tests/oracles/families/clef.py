"""Clef: a Qwen 3.5 that decides, with the head as conversion/clef.py reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from tests.oracles.case import Case, table
from tests.oracles.families import hybrids

_WIDTH, _FEED_FORWARD = 48, 80
Shapes = dict[str, tuple[int, ...]]


def head_shapes(width: int, routing: int, joint: int) -> Shapes:
    """The tensors of joint_head.safetensors behind a model of this width."""

    def norm(name: str, size: int = _WIDTH) -> Shapes:
        return {f"{name}.weight": (size,), f"{name}.bias": (size,)}

    def linear(name: str, rows: int, columns: int) -> Shapes:
        return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}

    def attention(name: str) -> Shapes:
        joined = {f"{name}.in_proj_weight": (3 * _WIDTH, _WIDTH), f"{name}.in_proj_bias": (3 * _WIDTH,)}
        return joined | linear(f"{name}.out_proj", _WIDTH, _WIDTH)

    out: Shapes = norm("hidden_norm", width)
    for i in range(routing):
        start = f"evidence_layers.{i}."
        out |= norm(f"{start}memory_norm") | norm(f"{start}query_norm") | norm(f"{start}feedforward_norm")
        out |= attention(f"{start}attention") | linear(f"{start}feedforward.0", _FEED_FORWARD, _WIDTH)
        out |= linear(f"{start}feedforward.3", _WIDTH, _FEED_FORWARD)
    for i in range(joint):
        start = f"layers.{i}."
        out |= norm(f"{start}norm1") | norm(f"{start}norm2") | norm(f"{start}norm3")
        out |= attention(f"{start}self_attn") | attention(f"{start}multihead_attn")
        out |= linear(f"{start}linear1", _FEED_FORWARD, _WIDTH) | linear(f"{start}linear2", _WIDTH, _FEED_FORWARD)
    out |= norm("field_norm") | norm("option_norm") | norm("option_summary_norm")
    for name in ("memory", "question", "option_question", "global", "option_context", "option_lexical"):
        out[f"{name}_projection.weight"] = (_WIDTH, width)
    out |= linear("residual_scorer.0", _WIDTH, 4 * _WIDTH) | linear("residual_scorer.3", 1, _WIDTH)
    out |= {"type_embedding.weight": (3, _WIDTH)}
    return out | dict.fromkeys(("prior_logit_scale", "joint_logit_scale", "residual_gate"), ())


_GOLDEN = Path(__file__).parents[2] / "models" / "golden" / "families"
_RECORD = json.loads((_GOLDEN / "qwen35-seeing.json").read_text("utf-8"))
_HEAD = {"routing_layers": 2, "layers": 3, "heads": 4}


def _shapes() -> Shapes:
    trunk = {n: tuple(shape) for n, shape in _RECORD["hf"].items() if not n.startswith("model.visual.")}
    head = head_shapes(_RECORD["config"]["text_config"]["hidden_size"], _HEAD["routing_layers"], _HEAD["layers"])
    return trunk | {f"joint_head.{name}": shape for name, shape in head.items()}


def _finish(folder: Path) -> None:
    """The files by which the reference knows the class; the head's tensors are with the others here."""
    save_file({}, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(_HEAD))


CASES = table(
    Case(
        "clef",
        "ClefModel",
        "qwen",
        {k: v for k, v in _RECORD["config"].items() if k not in ("architectures", "torch_dtype", "dtype")}
        | {"decision": _HEAD | {"width": _WIDTH, "feed_forward_width": _FEED_FORWARD}},
        shapes=_shapes(),
        finish=_finish,
        flags=("--no-mtp", "--no-lazy"),
        computed=("decision.scales",),
        runs=False,
        defaults=_RECORD["defaults"] | {"model_type": "qwen3_5"},
        beside=("model.visual.x.weight",),
        taken="qwen3_5",
    ),
)
UNSAID: dict[str, dict[str, Any]] = {"clef": hybrids.UNSAID["qwen35"]}
