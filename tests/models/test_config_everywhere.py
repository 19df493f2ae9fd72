"""A config for bare weights, in each function and form: the same answers as for the folder that has it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.llama import CONFIG, make_folder
from tests.remote.conftest import _clean, connect
from tests.remote.servers import Hub

import weighbridge as wb
from weighbridge.base.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.conversion.edit.plan import read_metadata
from weighbridge.models.model import SourceOptions
from weighbridge.page.data import PageData

transformers: Any = pytest.importorskip("transformers")

__all__ = ["_clean", "connect"]
FORMS = ("file", "folder", "dict", "hub")
KINDS = ("safetensors", "pt")
Answer = Callable[[Path, dict[str, Any], Path], Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder with a tokenizer and in one without, its bare weights in two formats, and its GGUF."""
    root = tmp_path_factory.mktemp("config")
    make_folder(root / "model", words=True)
    (root / "model" / "tokenizer_config.json").write_text('{"bos_token": "t0"}')
    shutil.copytree(root / "model", root / "plain", ignore=shutil.ignore_patterns("tokenizer*"))
    (root / "bare").mkdir()
    shutil.copy(root / "model" / "model.safetensors", root / "bare" / "weights.safetensors")
    torch.save(load_file(root / "model" / "model.safetensors"), root / "bare" / "weights.pt")
    wb.convert(root / "model", root / "model.gguf", name="x")
    (root / "text.txt").write_text("t0 t0 0t0t " * 40)
    return root


def _tensors(model: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(model[name].numpy(np.float32)).tobytes() for name in model}


def _open(path: Path, config: dict[str, Any], out: Path) -> Any:
    with wb.open(path, names="canonical", **config) as model:
        return dict(model.config), _tensors(model)


def _provider(path: Path, config: dict[str, Any], out: Path) -> Any:
    with wb.provider(path, **config) as provider:
        values = {name: np.asarray(provider.get(name)).tobytes() for name in provider}
        return values, provider.config.layers, provider.config.heads, provider.metadata("tokenizer.ggml.tokens")


def _load(path: Path, config: dict[str, Any], out: Path) -> Any:
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).float()
    report = wb.load(path, into=module, names="hf", **config)
    return report.missing, {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


def _from_pretrained(path: Path, config: dict[str, Any], out: Path) -> Any:
    model = wb.from_pretrained(transformers.LlamaForCausalLM, path, dtype="f32", **config)
    with torch.no_grad():
        return model(torch.tensor([[1, 2, 3]])).logits.numpy().tobytes(), model.config.rms_norm_eps


def _written(convert: Callable[..., Any], target: str, /, *more: Any, **options: Any) -> Answer:
    def answer(path: Path, config: dict[str, Any], out: Path) -> Any:
        convert(path, out / target, *more, **options, **config)
        files = sorted((out / target).iterdir()) if (out / target).is_dir() else [out / target]
        data = {file.name: file.read_bytes() for file in files}
        if target.endswith(".gguf"):  # the order of the tensors is that of the source's file
            with wb.open(out / target) as model:
                return {key: repr(kv) for key, kv in read_metadata(out / target).items()}, _tensors(model)
        return {k: json.loads(v) if k.endswith(".json") else v for k, v in data.items()}

    return answer


def _fit(path: Path, config: dict[str, Any], out: Path) -> Any:
    report = wb.fit(path, device="8GB", **config)
    return report.memory, report.type, report.verdict


def _imatrix(path: Path, config: dict[str, Any], out: Path) -> Any:
    wb.imatrix(path, out / "m.gguf", text=[str(out.parent / "text.txt")], context=16, chunks=2, **config)
    return (out / "m.gguf").read_bytes()


def _quality(path: Path, config: dict[str, Any], out: Path) -> Any:
    gguf, text = out.parent / "model.gguf", [str(out.parent / "text.txt")]
    report = wb.quality(path, gguf, text=text, context=16, chunks=2, **config)
    return report.perplexity, report.kl, report.same_tokens


def _prove(path: Path, config: dict[str, Any], out: Path) -> Any:
    report = wb.prove(path, out.parent / "model.gguf", tokens=16, **config)
    return report.verdict, [(c.name, c.verdict, c.measures, c.message.replace(str(path), "")) for c in report.checks]


def _view(path: Path, config: dict[str, Any], out: Path) -> Any:
    options = SourceOptions(**config)
    with PageData(path, options=options) as data:
        answers = (data.answer(name, {"model": "0"}).decode() for name in ("architecture", "graph", "vocabulary"))
        return [answer.replace(str(path), "") for answer in answers]


def _verify(path: Path, config: dict[str, Any], out: Path) -> Any:
    report = wb.verify(path, **config)
    return report.verdict, report.tensors, [(f.rule, f.severity, f.message, f.tensor) for f in report.findings]


FUNCTIONS: Mapping[str, Answer] = {
    "open": _open, "provider": _provider, "load": _load, "from_pretrained": _from_pretrained,
    "convert gguf": _written(wb.convert, "o.gguf", name="x"),
    "convert hf": _written(wb.convert, "o", to="hf"),
    "convert mlx": _written(wb.convert, "o", to="mlx", q_bits=4, q_group_size=32),
    "quantize": _written(wb.quantize, "o.gguf", "Q8_0", name="x"),
    "fit": _fit, "imatrix": _imatrix, "quality": _quality, "prove": _prove, "view": _view, "verify": _verify,
}  # fmt: skip
#: Functions that need a tokenizer, which only a folder lends.
WITH_TOKENIZER = {"imatrix", "quality"}
#: GGUFs are written without one if none is given.
WRITES_TOKENIZER = {"convert gguf", "quantize"}


@contextmanager
def given(form: str, root: Path, connect: Any) -> Iterator[Any]:
    """The config in a form."""
    if form == "hub":
        with Hub(root / "model").running() as hub:
            connect(hub)
            yield "hf://org/model"
    else:
        path = root / "plain" / "config.json"
        yield {"file": path, "dict": json.loads(path.read_text()), "folder": root / "model"}[form]


def _out(root: Path, name: str) -> Path:
    shutil.rmtree(root / name, ignore_errors=True)
    (root / name).mkdir()
    return root / name


@pytest.fixture(scope="module")
def of_folder(root: Path) -> Callable[[str, str], Any]:
    """The answer of a function for a folder, which takes seconds."""

    @cache
    def answer(function: str, folder: str) -> Any:
        more = {"tokenizer": False} if function in WRITES_TOKENIZER and folder == "plain" else {}
        return FUNCTIONS[function](root / folder, more, _out(root, "expected"))

    return answer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_answers_are_those_of_the_folder(
    function: str, form: str, root: Path, connect: Any, of_folder: Callable[[str, str], Any]
) -> None:
    answer, lends = FUNCTIONS[function], form in ("folder", "hub")
    more = {"tokenizer": False} if function in WRITES_TOKENIZER and not lends else {}
    for kind in KINDS:
        with given(form, root, connect) as config:
            if function in WITH_TOKENIZER and not lends:
                with pytest.raises(WeighbridgeError, match="tokenizer"):
                    answer(root / "bare" / f"weights.{kind}", {"config": config}, _out(root, "got"))
                continue
            found = answer(root / "bare" / f"weights.{kind}", {"config": config, **more}, _out(root, "got"))
        expected = of_folder(function, "model" if lends else "plain")
        if function == "verify" and kind == "pt":  # of torch's files no names are compared
            continue
        assert found == expected, kind


BAD: Mapping[str, tuple[dict[str, Any], str]] = {
    "wider": ({"hidden_size": 128}, r"model\.layers\.0\.self_attn\.q_proj\.weight is \[64, 64\]"),
    "fewer layers": ({"num_hidden_layers": 1}, r"model\.layers\.1\.self_attn\.q_proj\.weight"),
    "more layers": ({"num_hidden_layers": 3}, r"model\.layers\.2\."),
    "more tokens": ({"vocab_size": 99}, r"model\.embed_tokens\.weight is \[80, 64\]"),
    "another family": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2,
                        "n_head": 4}, r"transformer\.wte\.weight"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "verify"])
def test_another_models_config_is_refused_with_names(function: str, bad: str, root: Path) -> None:
    change, words = BAD[bad]
    with pytest.raises(FormatError, match=words):
        FUNCTIONS[function](root / "bare" / "weights.safetensors", {"config": CONFIG | change}, _out(root, "refused"))


@pytest.mark.parametrize("bad", BAD)
def test_verify_reports_another_models_config(bad: str, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "plain", tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text(json.dumps(config := CONFIG | BAD[bad][0]))
    found = _verify(root / "bare" / "weights.safetensors", {"config": config}, tmp_path)
    assert found == _verify(tmp_path / "bad", {}, tmp_path)
    assert any(rule.startswith("config/") for rule, *_ in found[-1])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_gguf_contains_its_config(function: str, root: Path) -> None:
    with pytest.raises(UsageError, match=r"contains its config|each of the models has a config"):
        FUNCTIONS[function](root / "model.gguf", {"config": root / "model"}, _out(root, "refused"))


def test_names_that_the_family_lacks_are_named(root: Path, tmp_path: Path) -> None:
    torch.save({"w.weight": torch.ones(3, 3)}, tmp_path / "own.pt")
    with pytest.raises(FormatError, match=r"none of the tensors has a name of the llama family: w\.weight"):
        wb.open(tmp_path / "own.pt", config=root / "model")


def test_a_config_without_a_table_is_accepted(root: Path) -> None:
    with wb.open(root / "bare" / "weights.pt", config={"architectures": ["FooForCausalLM"]}) as model:
        assert len(model) == 21


def test_further_tensors_are_accepted(root: Path, tmp_path: Path) -> None:
    tensors = load_file(root / "model" / "model.safetensors") | {"value_head.weight": torch.ones(1, 64)}
    torch.save(tensors, tmp_path / "more.pt")
    with wb.open(tmp_path / "more.pt", config=CONFIG) as model:
        assert len(model) == 22


def test_from_pretrained_takes_an_object_of_transformers(root: Path) -> None:
    config = transformers.LlamaConfig(**{**CONFIG, "rms_norm_eps": 0.25})
    for path in (root / "bare" / "weights.pt", root / "model"):  # a folder's own is replaced
        model = wb.from_pretrained(transformers.LlamaForCausalLM, path, config=config)
        assert model.config.rms_norm_eps == 0.25


def test_a_config_is_only_for_files(root: Path) -> None:
    with pytest.raises(UsageError, match="config doesn't apply to arrays"):
        wb.provider({"a": np.ones(3)}, config=CONFIG)


def test_ranks_are_read_with_a_config(root: Path, tmp_path: Path) -> None:
    wb.split(root / "model", tmp_path / "ranks", tp=2)
    (tmp_path / "ranks" / "config.json").unlink()
    with wb.open(tmp_path / "ranks", names="canonical", config=root / "model") as model:
        assert _tensors(model) == _open(root / "model", {}, tmp_path)[1]
    with pytest.raises(FormatError, match="q_proj"):
        wb.open(tmp_path / "ranks", config=CONFIG | {"hidden_size": 128})


@pytest.mark.parametrize("command", ["verify", "prove", "view"])
def test_the_command_line_has_the_option(
    command: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"prove": [str(root / "model.gguf"), "--no-run"], "view": ["-o", str(tmp_path / "o.html")], "verify": []}
    words = [command, str(root / "bare" / "weights.safetensors"), *more[command]]
    main([*words, "--config", str(root / "model")])
    out = capsys.readouterr()
    assert {"verify": "ok: 4 files", "prove": "settings mean the same", "view": ""}[command] in out.out + out.err
    assert "no config.json" not in out.out + out.err
    if command == "prove":
        assert main([command, str(root / "model"), str(root / "model.gguf"), "--config", str(root / "model")]) == 2
        assert "each of the models has a config" in capsys.readouterr().err
