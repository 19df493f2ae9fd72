"""Every option of the command line is a keyword of the function behind it, and none is ignored in silence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.llama import CONFIG, make_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.base.options import options_of
from weighbridge.cli.main import BY_NAME, COMMANDS, common_options, load
from weighbridge.cli.options import Option
from weighbridge.conversion.options import TARGETS, GgufOptions, WriteOptions
from weighbridge.conversion.plan.fingerprint import key_of
from weighbridge.models.model import SourceOptions
from weighbridge.reports.stores import duplicates

# What a command adds to its function: how the answer is shown, or that nothing is written.
SHOWN = {"json", "dry_run", "output", "short_quiet", *(p.name for p in common_options())}
# Command -> (function, options that only the command has, keywords that only the function has).
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], set[str], set[str]]] = {
    "convert": (wb.plan_convert, set(), set()),
    "plan": (wb.plan_convert, set(), set()),
    "quantize": (wb.plan_quantize, {"tensor_type_file", "save_recipe", "report"}, {"ftype"}),
    "split": (wb.plan_split, set(), set()),
    "merge": (wb.plan_merge, set(), set()),
    "extract-lora": (wb.plan_extract_lora, set(), set()),
    "imatrix": (wb.imatrix, {"dry_run"}, set()),
    "strip": (wb.plan_strip, set(), set()),
    "rename": (wb.plan_rename, set(), set()),
    "slice": (wb.plan_slice, set(), set()),
    "fetch": (wb.plan_fetch, set(), set()),
    "pack": (wb.plan_pack, set(), set()),
    "unpack": (wb.plan_unpack, set(), set()),
    "edit": (wb.plan_edit, {"list", "get", "set_array"}, {"output"}),
    "ship": (wb.plan_ship, set(), {"name", "output"}),
    "view": (wb.view, {"overwrite", "values"}, set()),  # of export_view, which --output calls
    "verify": (wb.verify, {"fail_on"}, set()),
    "sign": (wb.sign, set(), {"password"}),
    "sbom": (wb.sbom, {"overwrite"}, set()),
    "scan": (wb.scan, {"fail_on", "allow_unproven", "allow_unscanned", "recursive", "sarif", "overwrite"}, set()),
    "hash": (wb.hash, {"gguf_hash", "manifest", "check", "overwrite"}, set()),
    "diff": (wb.diff, {"limit", "brief", "html", "overwrite"}, set()),
    "lineage": (wb.lineage, {"svg", "overwrite"}, set()),
    "prove": (wb.prove, set(), set()),
    "fit": (wb.fit, {"explain"}, set()),
    "choose": (wb.choose, set(), set()),
    "quality": (wb.quality, set(), set()),
    "stats": (wb.stats, set(), set()),
    "ls": (wb.ls, {"long"}, set()),
    "get": (wb.get, {"raw", "overwrite"}, set()),  # wb.save and wb.open(...)[name].raw()
    "explain": (wb.explain, set(), set()),
    "inspect": (wb.inspect, {"tensors", "tree", "metadata", "model"}, set()),
    "anatomy": (wb.anatomy, {"tensor", "block", "map"}, {"cells"}),
    "identify": (wb.identify, set(), set()),
    "dedupe": (duplicates.dedupe, {"yes"}, {"dry_run"}),
    "du": (duplicates.usage, set(), set()),
}
#: Command -> why no function of Python has its options.
NO_FUNCTION = {
    "arch": "it looks families up in their tables",
    "completion": "it prints a script for a shell",
    "fleet": "fleets.run.Fleet is the function, and a command is a job of it",
    "mount": "it runs until the folder is unmounted",
    "serve": "it runs until it is interrupted",
}
#: Command and parameter -> why it isn't declared by a dataclass (`base/options.py`).
UNDECLARED = {
    (name, "short_quiet"): "-q alone, told from --quiet: mlx_lm.convert's -q quantizes" for name in ("convert", "plan")
}
#: Function of Python that accepts any keyword -> what the keywords are.
ANY_KEYWORD = {
    "from_pretrained": "passed on to transformers", "load_checkpoint": "objects to load", "save_checkpoint": "parts",
}  # fmt: skip
#: The functions that read a model and write one.
WRITING = (wb.convert, wb.split, wb.merge, wb.strip, wb.rename, wb.slice, wb.quantize)
#: Options whose meaning is the command's -> why that is one meaning.
SHARED: Mapping[str, str] = {
    "mmproj": "the towers of a model, under llama.cpp's name: its converter has a flag, its programs a file",
    "limit": "number of rows", "sort": "a field to sort by", "include": "names to keep",
    "exclude": "names to leave out",
    "fail_on": "the least verdict with exit code 1", "tensors": "one row per tensor", "values": "read the values too",
    "output": "the place to write to", "overwrite": "replace what is there", "tensor": "the name of a tensor",
    "dry_run": "write nothing", "runtime": "the program that runs a model", "port": "a port to listen on",
    "device": "a GPU or a size of memory", "hard_link": "several names for one file", "type": "a type of wb quantize",
    "base": "the base of an adapter or a delta", "recipe": "which tensor gets which type",
    "text": "a text that a model reads", "context": "tokens that a model sees at once",
    "resume": "continue an interrupted run", "jobs": "threads", "to": "a format", "dtype": "the type of numbers",
    "algo": "the digest", "signature": "the file of a signature", "key": "a signer's key",
    "certificate": "certificates of a signer",
}  # fmt: skip


def keywords(function: Callable[..., Any]) -> set[str]:
    """The keywords of a function."""
    parameters = signature(function).parameters.values()
    optional = {
        p.name for p in parameters if p.kind is not Parameter.VAR_POSITIONAL and p.default is not Parameter.empty
    }
    return optional - {"progress", "paths", "other", "model"}


def commands() -> Iterator[tuple[str, click.Command]]:
    for row in COMMANDS:
        command = load(row)
        yield row.name, command
        if isinstance(command, click.Group):
            yield from ((f"{row.name} {name}", one) for name, one in command.commands.items())


def spelled(option: click.Option) -> str:
    """The keyword that a command's option stands for."""
    long = next(name for name in (*option.opts, *option.secondary_opts) if name.startswith("--"))
    return long[2:].replace("-", "_")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_the_keywords_of_the_function(name: str) -> None:
    function, of_command, of_function = FUNCTIONS[name]
    options = {p for p in load(BY_NAME[name]).params if isinstance(p, click.Option) and p.name not in SHOWN}
    named = {spelled(p) for p in options} - {"lossless"}
    assert named - of_command == keywords(function) - of_function


def test_every_spelling_has_one_meaning() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and option.name != "short_quiet":
                every = (*option.opts, *option.secondary_opts, *getattr(option, "aliases", ()))
                for text in every:
                    name = str(option.name)
                    meanings.setdefault(text, set()).add(name if name in SHARED else f"{name}: {option.help}")
    assert {text: found for text, found in meanings.items() if len(found) > 1} == {}


def test_an_option_is_spelled_as_its_keyword() -> None:
    for _, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden and option.expose_value:
                assert spelled(option) in (option.name, "lossless")


def test_every_function_that_writes_accepts_the_same_options() -> None:
    common = {field.name for kind in (SourceOptions, WriteOptions) for field, _ in options_of(kind)}
    for function in WRITING:
        assert common <= keywords(function), function.__name__
    writing = {field.name for field, _ in options_of(WriteOptions)}
    assert all(writing <= keywords(function) for function in (*WRITING, wb.save, wb.fetch))


def test_every_command_that_reads_a_model_accepts_a_family_table() -> None:
    """Not so: commands that look at no family."""
    without = {"identify", "ls", "du", "anatomy", "explain", "get", "scan", "choose", "hash", "fetch", "dedupe", "edit"}
    without |= {"sign", "sbom", "pack", "unpack"}
    without |= {"fleet", "serve", "mount", "completion", "arch"}
    have = {name for name, command in commands() if any(p.name == "arch_file" for p in command.params)}
    assert {row.name for row in COMMANDS} - without <= have


def test_all_parts_are_of_a_training_checkpoint(sources: Mapping[str, Path], tmp_path: Path) -> None:
    for source in ("folder", "gguf", "safetensors", "torch"):
        with pytest.raises(UsageError, match="all_parts=True doesn't apply"):
            wb.plan_convert(sources[source], tmp_path / "o.npz", all_parts=True)


def test_every_command_is_compared() -> None:
    assert {row.name for row in COMMANDS} == {*FUNCTIONS, *NO_FUNCTION}


def test_every_option_is_declared_by_a_dataclass() -> None:
    undeclared = {
        (name, param.name)
        for name, command in commands()
        for param in command.params
        if isinstance(param, click.Option) and not isinstance(param, Option)
    }
    assert undeclared == set(UNDECLARED)


def test_only_one_module_makes_options_of_click() -> None:
    package = Path(wb.__file__).parent
    makers = {
        path.relative_to(package).as_posix(): len(found)
        for path in sorted(package.rglob("*.py"))
        if (found := re.findall(r"click\.[oO]ption\(", path.read_text("utf-8")))
    }
    assert makers == {"cli/commands/convert.py": 1}  # -q of mlx_lm


def test_no_public_function_accepts_unknown_keywords() -> None:
    functions = {name: getattr(wb, name) for name in wb.__all__ if callable(getattr(wb, name))}
    loose = {
        name
        for name, function in functions.items()
        if not isinstance(function, type)
        and any(p.kind is Parameter.VAR_KEYWORD for p in signature(function).parameters.values())
    }
    assert loose == set(ANY_KEYWORD)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_command_takes_unnamed_options(name: str) -> None:
    """A command gets its options as an object, whose class a type checker knows."""
    command = load(BY_NAME[name])
    callback: Any = getattr(command.callback, "func", command.callback)
    parameters = signature(callback).parameters
    assert "options" in parameters
    assert all(p.kind is not Parameter.VAR_KEYWORD for p in parameters.values())


def test_the_parts_of_a_checkpoint_stand_next_to_the_options(tmp_path: Path) -> None:
    wb.save_checkpoint(tmp_path / "a" / "b", epoch=3, parents=True, jobs=1)
    assert wb.load_checkpoint(tmp_path / "a" / "b") == {"epoch": 3}
    with pytest.raises(wb.errors.RefusedError):
        wb.save_checkpoint(tmp_path / "a" / "b", epoch=4)
    wb.save_checkpoint(tmp_path / "a" / "b", epoch=4, overwrite=True)
    assert wb.load_checkpoint(tmp_path / "a" / "b") == {"epoch": 4}


# ------------------------------------------------------------------------------------------------ the matrix

SOURCES = ("folder", "gguf", "safetensors", "torch", "adapter")
TO: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gguf": ("o.gguf", {}),
    "hf": ("o", {"to": "hf"}),
    "mlx": ("o", {"to": "mlx"}),
    "scheme": ("o", {"to": "hf", "scheme": "w4a16", "q_group_size": 32, "text": [__file__], "context": 16}),
    "safetensors": ("o.safetensors", {}),
    "torch": ("o.pt", {}),
    "torch folder": ("o", {"to": "torch"}),
    "npz": ("o.npz", {}),
    "checkpoint": ("o", {"to": "checkpoint"}),
}
# A value of each option that changes what is written wherever the option applies, if its type doesn't give one.
SPECIAL: Mapping[str, Any] = {
    "max_shard_size": 1, "max_shard_tensors": 1, "inexact": "refuse", "align": 1 << 18, "pre": "qwen2",
    "name": "Another", "rms_eps": 0.5, "context_length": 17, "scheme": "w8a8", "q_bits": 8, "q_group_size": 64,
    "sym": False, "act_order": "none", "damp": 0.5, "smooth": 0.5, "q_mode": "mxfp4", "recipe": "mixed_2_6",
    "comfy_quant": "fp8_scaled", "dtype": None, "base": None, "projector": None, "graph": None, "kv": {"my.own": 1},
    "task_adapter": "separation",
}  # fmt: skip


def value_of(field: Field[Any]) -> Any:
    if field.name in SPECIAL:
        return SPECIAL[field.name]
    if field.type in ("bool", "bool | None"):
        return not field.default
    return get_args(get_type_hints(GgufOptions)[field.name])[-1]


VALUES: Mapping[str, Any] = {field.name: value_of(field) for target in TARGETS for field, _ in options_of(target)}
# Options that allow or forbid something, or state a fact, and change nothing where it makes no difference.
POLICIES = {"inexact", "allow_requantize", "base"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    import torch

    here = tmp_path_factory.mktemp("sources")
    folder = make_folder(here / "model", words=True)
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
        files = {"base": sources["base"], "projector": sources["gguf"], "graph": sources["gguf"]}
        value = {"dtype": other_dtype(source, target), **files}.get(option, value)
        given = {option: value}
        try:
            changed = outcome(plan(**{**to, **given}))
        except wb.errors.WeighbridgeError:
            continue
        assert changed != usual or option in POLICIES, option


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in SOURCES for t in TO])
def test_matrices_have_the_requested_type_or_it_is_refused(
    source: str, target: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    name, to = TO[target]
    if target == "scheme":
        pytest.skip("codes are integers")
    for wanted in ("f32", "f16", "bf16", "f64", "f8_e4m3", "q8_0"):
        try:
            plan = wb.plan_convert(sources[source], tmp_path / name, dtype=wanted, **to)
        except wb.errors.WeighbridgeError:
            continue
        nodes = [node for file in plan.files for _, node in file.slots]
        types = {n.spec.dtype.name for n in nodes if len(n.spec.shape) == 2 and not n.spec.dtype.kind.endswith("int")}
        fallback = {"F16"} if any("using F16" in loss.message for loss in plan.losses) else set()
        assert types <= {wanted.upper(), *fallback}


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("m.gguf", {"q_bits": 3, "q_mode": "mxfp4"}, "q_bits doesn't apply to a GGUF"),
        ("m.npz", {"max_shard_size": 5}, "max_shard_size doesn't apply to a NumPy file"),
        ("m", {"to": "hf", "pre": "x"}, "pre doesn't apply to a Hugging Face folder"),
        ("m.gguf", {"rms_eps": 1e-5}, "rms_eps doesn't apply to a model folder as the source"),
        ("m.gguf", {"scheme": "w4a16"}, "scheme doesn't apply to a GGUF"),
        ("m", {"to": "mlx", "inexact": "near"}, 'inexact="near" doesn.t apply to an MLX folder'),
        ("m.gguf", {"base": "x"}, "base doesn't apply to a GGUF"),
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
    assert error.value.hint == "did you mean dtype?"


def test_options_may_be_given_as_an_object(sources: Mapping[str, Path], tmp_path: Path) -> None:
    plan = wb.plan_convert(sources["folder"], tmp_path / "m.gguf", to=wb.GgufOptions(dtype="bf16"), name="Tiny")
    same = wb.plan_convert(sources["folder"], tmp_path / "m.gguf", dtype="bf16", name="Tiny")
    assert outcome(plan) == outcome(same)
    with pytest.raises(UsageError, match="q_bits doesn't apply to a GGUF"):
        wb.plan_convert(sources["folder"], tmp_path / "m.gguf", to=wb.GgufOptions(), q_bits=4)
