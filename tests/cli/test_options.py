"""Every option of the command line is a keyword of the function behind it, and none is ignored in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import click
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.api.test_provider import CONFIG, llama_tensors, write
from tests.conversion.test_build import tokenizer

import weighbridge as wb
from weighbridge.api.keywords import ConvertKeywords
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import BY_NAME, COMMANDS, common_options, load
from weighbridge.conversion.options import TARGETS, flag, names_of
from weighbridge.conversion.plan.fingerprint import key_of

# What a command adds to its function: how the answer is shown, or that nothing is written.
SHOWN = {"as_json", "dry_run", "output", *(p.name for p in common_options())}
# Command -> (function, {option: keyword, or None where the option is the command's own}).
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Mapping[str, str | None]]] = {
    "convert": (wb.plan_convert, {}),
    "plan": (wb.plan_convert, {}),
    "quantize": (wb.plan_quantize, {"patterns": None, "report": None}),  # a file of --tensor-type; compare_quantized
    "split": (wb.plan_split, {}),
    "merge": (wb.plan_merge, {}),
    "strip": (wb.plan_strip, {}),
    "rename": (wb.plan_rename, {}),
    "slice": (wb.plan_slice, {}),
    "edit": (wb.plan_edit, {"show_all": None, "wanted": None, "assigned": "set", "arrays": "set", "output": "output"}),
    "fetch": (wb.plan_fetch, {}),
    "view": (wb.view, {"overwrite": None, "values": None}),  # of export_view, which --output calls
    "ship": (wb.plan_ship, {"output": "output"}),
    "verify": (wb.verify, {"fail_on": None}),
    "diff": (wb.diff, {"limit": None, "brief": None, "html": None, "overwrite": None}),
    "inspect": (wb.inspect, {"tensors": None, "tree": None, "metadata": None, "model": None}),
}


def keywords(function: Callable[..., Any]) -> set[str]:
    """The keywords of a function, those of an unpacked TypedDict included."""
    found = set()
    hints = get_type_hints(function, include_extras=True)
    for name, param in signature(function).parameters.items():
        if param.kind is Parameter.KEYWORD_ONLY:
            found.add(name)
        elif param.kind is Parameter.VAR_KEYWORD and get_origin(hints[name]) is Unpack:
            found |= set(get_type_hints(get_args(hints[name])[0]))
    return found - {"progress"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_the_keywords_of_the_function(name: str) -> None:
    function, special = FUNCTIONS[name]
    options = {str(p.name) for p in load(BY_NAME[name]).params if isinstance(p, click.Option)}
    own = {special.get(option, option) for option in options if option not in SHOWN or option in special} - {None}
    assert own == keywords(function)


def test_every_command_that_writes_is_compared() -> None:
    writing = {row.name for row in COMMANDS if any(p.name == "overwrite" for p in load(row).params)}
    assert writing - {"get", "hash", "scan"} <= set(FUNCTIONS)


def test_a_flag_is_spelled_as_its_keyword() -> None:
    spelled = {opt for p in load(BY_NAME["convert"]).params if isinstance(p, click.Option) for opt in p.opts}
    assert {flag(name) for name in ConvertKeywords.__annotations__} <= spelled


# ------------------------------------------------------------------------------------------------ the matrix

SOURCES = ("folder", "gguf", "safetensors", "torch", "adapter")
TO: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gguf": ("o.gguf", {}),
    "hf": ("o", {"to": "hf"}),
    "mlx": ("o", {"to": "mlx"}),
    "scheme": ("o", {"to": "hf", "scheme": "w4a16", "q_group_size": 32}),
    "safetensors": ("o.safetensors", {}),
    "torch": ("o.pt", {}),
    "torch folder": ("o", {"to": "torch"}),
    "npz": ("o.npz", {}),
    "checkpoint": ("o", {"to": "checkpoint"}),
}
# A value of each option that changes what is written wherever the option applies.
VALUES: Mapping[str, Any] = {
    "dtype": None,
    "max_shard_size": 1,
    "max_shard_tensors": 1,
    "inexact": "refuse",
    "allow_requantize": True,
    "align": 1 << 18,
    "tokenizer": False,
    "pre": "qwen2",
    "name": "Another",
    "rms_eps": 0.5,
    "context_length": 17,
    "scheme": "w8a8",
    "vocab_only": True,
    "quantize": True,
    "q_bits": 8,
    "q_group_size": 64,
    "sym": False,
    "q_mode": "mxfp4",
    "recipe": "mixed_2_6",
    "base": None,
}
# Options that allow or forbid something, or state a fact, and change nothing where it makes no difference.
POLICIES = {"inexact", "allow_requantize", "base"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    import torch

    here = tmp_path_factory.mktemp("sources")
    folder = here / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    write(folder / "model.safetensors", llama_tensors())
    wb.convert(folder, here / "m.gguf", dtype="f16")
    tensors = {"a": np.ones((4, 64), np.float32), "b": np.ones((64,), np.float32), "c": np.ones((8, 64), np.float32)}
    save_file(tensors, here / "m.safetensors")
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, here / "m.pt")
    adapter = here / "adapter"
    adapter.mkdir()
    q = "base_model.model.model.layers.0.self_attn.q_proj"
    heads: Any = CONFIG["hidden_size"]
    save_file(
        {f"{q}.lora_A.weight": np.ones((2, heads), np.float32), f"{q}.lora_B.weight": np.ones((heads, 2), np.float32)},
        adapter / "adapter_model.safetensors",
    )
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
                    "base_model_name_or_path": str(folder)})
    )  # fmt: skip
    return {"folder": folder, "gguf": here / "m.gguf", "safetensors": here / "m.safetensors", "torch": here / "m.pt",
            "adapter": adapter, "base": shutil.copytree(folder, here / "base")}  # fmt: skip


def outcome(plan: wb.Plan) -> Any:
    """All that a plan would write."""
    files = [(f.name, f.layout.size, len(f.nodes)) for f in plan.files]
    return files, dict(plan.texts), {k: v for k, v in key_of(plan).items() if k in ("headers", "tensors", "files")}


def other_dtype(source: str, target: str) -> str:
    """A dtype that the source's floats don't have in that target anyway."""
    return "f16" if source in ("safetensors", "torch", "adapter") or target == "npz" else "f32"


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in SOURCES for t in TO])
def test_an_option_changes_the_plan_or_is_refused(
    source: str, target: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    name, to = TO[target]
    plan = partial(wb.plan_convert, sources[source], tmp_path / name)
    try:
        usual = outcome(plan(**to))
    except wb.errors.WeighbridgeError:
        pytest.skip("no such conversion")
    for option, value in VALUES.items():
        if option in to:
            continue
        value = {"dtype": other_dtype(source, target), "base": sources["base"]}.get(option, value)
        given = {option: value}
        try:
            changed = outcome(plan(**{**to, **given}))
        except wb.errors.WeighbridgeError:
            continue
        assert changed != usual or option in POLICIES, option


def test_each_option_has_a_value_here() -> None:
    wanted = frozenset[str]().union(*map(names_of, TARGETS))
    assert wanted == set(VALUES)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("m.gguf", {"q_bits": 3, "q_mode": "mxfp4"}, "--q-bits doesn't apply to a GGUF"),
        ("m.npz", {"max_shard_size": 5}, "--max-shard-size doesn't apply to a NumPy file"),
        ("m", {"to": "hf", "pre": "x"}, "--pre doesn't apply to a Hugging Face folder"),
        ("m.gguf", {"rms_eps": 1e-5}, "--rms-eps doesn't apply to a model folder as the source"),
        ("m.gguf", {"scheme": "w4a16"}, "--scheme doesn't apply to a GGUF"),
        ("m", {"to": "mlx", "inexact": "near"}, "--inexact near doesn't apply to an MLX folder"),
        ("m.gguf", {"base": "x"}, "--base doesn't apply to a GGUF"),
    ],
)
def test_a_refusal_names_the_option_and_the_target(
    target: str, options: Any, words: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as error:
        wb.plan_convert(sources["folder"], tmp_path / target, **options)
    assert "it applies " in str(error.value.hint)


def test_a_misspelled_keyword_names_the_nearest(sources: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown option 'dytpe'") as error:
        wb.plan_convert(sources["folder"], tmp_path / "m.gguf", dytpe="f16")  # type: ignore[call-arg]
    assert error.value.hint == "did you mean 'dtype'?"


def test_options_may_be_given_as_an_object(sources: Mapping[str, Path], tmp_path: Path) -> None:
    plan = wb.plan_convert(sources["folder"], tmp_path / "m.gguf", to=wb.GgufOptions(dtype="bf16"), name="Tiny")
    same = wb.plan_convert(sources["folder"], tmp_path / "m.gguf", dtype="bf16", name="Tiny")
    assert outcome(plan) == outcome(same)
    with pytest.raises(UsageError, match="--q-bits doesn't apply to a GGUF"):
        wb.plan_convert(sources["folder"], tmp_path / "m.gguf", to=wb.GgufOptions(), q_bits=4)
