"""The plug-in of vLLM: what vLLM is handed of each format. vLLM itself is a stand-in here that has the names which the
plug-in takes from it; `tests/peers/run_vllm.py` runs the real one."""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors
from tests.oracles import vocabularies

import weighbridge as wb
from weighbridge.adapters.engines import vllm as plugin
from weighbridge.adapters.engines.transformers import QUANTIZATION_KEYS
from weighbridge.base.errors import FormatError, UsageError

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
ROOT = Path(__file__).parents[2]


class Arguments:
    """vLLM's `EngineArgs`: what the plug-in may change, and the config that is made of it."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.model, self.model_weights, self.tokenizer = str(model), "", None
        self.load_format = self.config_format = "auto"
        self.skip_tokenizer_init, self.served_model_name = False, None
        self.__dict__.update(options)

    def create_engine_config(self, usage_context: Any = None, headless: bool = False) -> dict[str, Any]:
        return {**self.__dict__, "context": usage_context, "headless": headless}


class StandIn:
    """What the plug-in takes from vLLM: two registries, the bases, the parser of the hub's format, its methods."""

    def __init__(self) -> None:
        self.loaders: dict[str, Any] = {}
        self.parsers: dict[str, Any] = {}
        self.modules: dict[str, ModuleType] = {}
        base = type("BaseModelLoader", (), {"__init__": lambda this, config: setattr(this, "load_config", config)})
        hub = SimpleNamespace(parse=self.hub_config)
        self.module(
            "model_executor.model_loader", BaseModelLoader=base,
            register_model_loader=self.into(self.loaders), get_model_loader=self.loader_of,
        )  # fmt: skip
        self.warned: list[str] = []
        self.arguments = type("EngineArgs", (Arguments,), {})
        self.module("engine.arg_utils", EngineArgs=self.arguments)
        self.module("config.load", LoadConfig=SimpleNamespace)
        self.module("logger", init_logger=lambda name: SimpleNamespace(warning=self.warn))
        self.module("model_executor.layers.quantization", QUANTIZATION_METHODS=["gptq", "awq"])
        self.module("transformers_utils.config_parser_base", ConfigParserBase=type("ConfigParserBase", (), {}))
        self.module(
            "transformers_utils.config",
            register_config_parser=self.into(self.parsers), get_config_parser={"hf": hub}.__getitem__,
        )  # fmt: skip

    def module(self, name: str, **members: Any) -> None:
        for part in itertools.accumulate(f"vllm.{name}".split("."), "{}.{}".format):
            self.modules.setdefault(part, ModuleType(part))
        self.modules[f"vllm.{name}"].__dict__.update(members)

    def loader_of(self, config: Any) -> Any:
        if config.load_format not in self.loaders:
            raise ValueError(f"Load format `{config.load_format}` is not supported")
        return self.loaders[config.load_format]

    def warn(self, message: str, *parts: Any) -> None:
        self.warned.append(message % parts)

    @staticmethod
    def into(registry: dict[str, Any]) -> Any:
        return lambda name: lambda kind: registry.setdefault(name, kind)

    @staticmethod
    def hub_config(model: str, *rest: Any, **options: Any) -> tuple[dict[str, Any], Any]:
        config = json.loads((Path(model) / "config.json").read_text())
        return config, SimpleNamespace(**config)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in after it has loaded its plug-ins, by the entry point of pyproject.toml."""
    found = StandIn()
    for name, module in found.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    for point in points.values():
        module_name, _, function = point.partition(":")
        getattr(importlib.import_module(module_name), function)()
    assert set(found.loaders) == set(found.parsers) == {plugin.NAME}
    return found


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One Llama in several formats."""
    at = tmp_path_factory.mktemp("vllm")
    wide = {k: np.resize(v, [128 if n == 96 else n for n in v.shape]) for k, v in llama_tensors().items()}
    wb.save(wide, at / "hf")
    config = {**CONFIG, "intermediate_size": 128}
    (at / "hf" / "config.json").write_text(json.dumps(config))
    wb.convert(at / "hf", at / "q8.gguf", dtype="q8_0", tokenizer=False)
    wb.convert(at / "hf", at / "mlx", to=wb.MlxOptions(q_bits=4, q_group_size=32))
    wb.convert(at / "hf", at / "gptq", to=wb.SchemeOptions(scheme="gptq", q_group_size=32))
    (at / "bin").mkdir()
    (at / "bin" / "config.json").write_text(json.dumps(config))
    torch.save({k: torch.from_numpy(v.astype(np.float32)) for k, v in wide.items()}, at / "bin" / "pytorch_model.bin")
    return {path.name: path for path in at.iterdir()}


class Model(torch.nn.Module):  # type: ignore[misc]
    """Takes what it is given, as vLLM's models do, and notes the order and the addresses."""

    def __init__(self, names: list[str] = []) -> None:  # noqa: B006
        super().__init__()
        self.names, self.given, self.order = names, dict[str, Any](), list[str]()
        self.pages: dict[str, int] = {}

    def named_parameters(self, *rest: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        return ((name, None) for name in self.names)

    def load_weights(self, weights: Iterator[tuple[str, Any]]) -> set[str]:
        for name, tensor in weights:
            self.order.append(name)
            self.pages[name] = tensor.data_ptr()
            self.given[name] = tensor.clone()
        return set(self.order)


def load(
    vllm: StandIn, path: Path, *, model: Model | None = None, quantization: str | None = None, **extra: Any
) -> Model:
    loader = vllm.loaders[plugin.NAME](SimpleNamespace(model_loader_extra_config=extra))
    config = SimpleNamespace(model=str(path), model_weights="", dtype=torch.bfloat16, quantization=quantization)
    loader.download_model(config)
    loader.load_weights(model := model or Model(), config)
    return model


def bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("form", ["hf", "q8.gguf", "mlx", "bin"])
def test_every_format_comes_under_hub_names(form: str, vllm: StandIn, forms: Mapping[str, Path]) -> None:
    model = load(vllm, forms["hf"], weights=str(forms[form]))
    with wb.open(forms[form], names="hf") as source:
        assert set(model.given) == set(llama_tensors()) == set(source)
        for name, tensor in model.given.items():
            want = source[name].torch(dtype=None if form in ("hf", "bin") else "bf16")
            plain = form == "q8.gguf" and source[name].dtype == "F32"  # norms keep the type that the file has
            assert tensor.dtype == (torch.float32 if plain else want.dtype)
            assert torch.equal(tensor.float(), want.float())


def test_plain_weights_are_views_of_the_file(vllm: StandIn, forms: Mapping[str, Path]) -> None:
    """They lie as far from each other as in the file."""
    before = load(vllm, forms["hf"]).pages
    with wb.open(forms["hf"]) as source:
        pages = {name: source[name].torch().data_ptr() for name in source}
        first = next(iter(pages))
        assert all(before[n] - before[first] == pages[n] - pages[first] for n in pages)


def test_modules_come_one_after_the_other(vllm: StandIn, forms: Mapping[str, Path]) -> None:
    """vLLM groups neighbours by the first component of their names, module by module."""

    def check(names: list[list[str]]) -> None:
        heads = [head for head, _ in itertools.groupby(names, lambda name: name[0])]
        assert len(heads) == len(set(heads))
        for _, group in itertools.groupby(names, lambda name: name[0]):
            if rest := [name[1:] for name in group if len(name) > 1]:
                check(rest)

    order = load(vllm, forms["q8.gguf"]).order
    assert len(order) == len(set(order)) == len(llama_tensors())
    check([name.split(".") for name in order])


def test_a_method_of_vllm_keeps_its_stored_parts(vllm: StandIn, forms: Mapping[str, Path]) -> None:
    kept = load(vllm, forms["gptq"], quantization="gptq")
    with wb.open(forms["gptq"], names="stored") as source:
        assert set(kept.given) == set(source)
        assert all(bits(t) == bits(source[name].torch()) for name, t in kept.given.items())
    decoded = load(vllm, forms["gptq"])
    assert set(decoded.given) == set(llama_tensors())
    assert {t.dtype for t in decoded.given.values()} == {torch.bfloat16}


def test_the_config_lacks_what_is_decoded(vllm: StandIn, forms: Mapping[str, Path], tmp_path: Path) -> None:
    parser = vllm.parsers[plugin.NAME]()
    for form, kept in (("hf", False), ("mlx", False), ("gptq", True)):
        config, made = parser.parse(str(forms[form]), False, None, None)
        assert [hasattr(made, key) or key in config for key in QUANTIZATION_KEYS] == [False, kept]
        assert made.hidden_size == config["hidden_size"] == 64
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "hqq"}}))
    assert parser.parse(str(tmp_path), False)[0] == {}


# ---------------------------------------------------------------------- `vllm serve FILE`


def engine(vllm: StandIn, model: Path, **options: Any) -> dict[str, Any]:
    config: dict[str, Any] = vllm.arguments(model, **options).create_engine_config("server", headless=True)
    assert (config["context"], config["headless"]) == ("server", True)
    return config


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF with a vocabulary."""
    folder = tmp_path_factory.mktemp("spoken") / "hf"
    rows = vocabularies.SPM_SIZE
    wb.save({k: np.resize(v, (rows, 64)) if len(v) == 80 else v for k, v in llama_tensors().items()}, folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": rows}))
    vocabularies.write_sentencepiece(folder)
    wb.convert(folder, path := folder.parent / "spoken.gguf", dtype="f16")
    return path


def test_a_gguf_becomes_a_folder_of_its_config_and_tokenizer(vllm: StandIn, spoken: Path) -> None:
    config = engine(vllm, spoken)
    assert (config["load_format"], config["config_format"]) == ("weighbridge", "auto")
    assert (config["model_weights"], config["served_model_name"]) == (str(spoken), [str(spoken)])
    folder = Path(config["model"])
    assert config["tokenizer"] == str(folder)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 64
    with wb.open(spoken) as source:
        tokens = source.metadata["tokenizer.ggml.tokens"]
    words = pytest.importorskip("tokenizers", reason=NOTHING).Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [words.id_to_token(n) for n in range(len(tokens))] == list(tokens)
    assert vocabularies.CHAT_TEMPLATE in {file.read_text() for file in folder.glob("chat_template*")}
    assert any("assuming the class LlamaForCausalLM" in line for line in vllm.warned)
    loader = vllm.loaders[plugin.NAME](SimpleNamespace(model_loader_extra_config={}))
    named = {"model": str(folder), "model_weights": str(spoken), "dtype": torch.bfloat16, "quantization": None}
    loader.load_weights(model := Model(), SimpleNamespace(**named))
    assert set(model.given) == set(llama_tensors())


def test_what_was_asked_for_stays(vllm: StandIn, spoken: Path, forms: Mapping[str, Path]) -> None:
    asked = {"tokenizer": "mine", "served_model_name": ["it"], "config_format": "hf", "load_format": "weighbridge"}
    config = engine(vllm, spoken, **asked)
    assert {key: config[key] for key in asked} == asked
    assert not (Path(config["model"]) / "tokenizer.json").exists()
    for other in ("gguf", "safetensors"):  # formats of others
        assert engine(vllm, spoken, load_format=other)["model"] == str(spoken)
    vllm.loaders["gguf"] = object()  # another plug-in has one for GGUF
    assert engine(vllm, spoken)["model"] == str(spoken)
    assert engine(vllm, spoken, load_format="weighbridge")["model_weights"] == str(spoken)


def test_a_file_takes_the_folder_that_it_lies_in(vllm: StandIn, forms: Mapping[str, Path], tmp_path: Path) -> None:
    for form, file, config_format in (("hf", "model.safetensors", "auto"), ("mlx", "model.safetensors", "weighbridge")):
        config = engine(vllm, forms[form] / file)
        assert (config["model"], config["model_weights"]) == (str(forms[form]), str(forms[form] / file))
        assert (config["load_format"], config["config_format"]) == ("weighbridge", config_format)
    shutil.copy(forms["hf"] / "model.safetensors", alone := tmp_path / "alone.safetensors")
    with pytest.raises(UsageError, match=r"needs a config\.json next to"):
        engine(vllm, alone)


def test_folders_that_vllm_loads_stay(vllm: StandIn, forms: Mapping[str, Path], tmp_path: Path) -> None:
    for form in ("hf", "gptq", "bin"):
        assert engine(vllm, forms[form])["load_format"] == "auto"
    config = engine(vllm, forms["mlx"])
    assert (config["load_format"], config["config_format"]) == ("weighbridge", "weighbridge")
    assert (config["model"], config["model_weights"]) == (str(forms["mlx"]), "")
    (tmp_path / "params.json").write_text("{}")
    for model in (tmp_path, Path("org/name")):  # Mistral's own format; a repository
        assert engine(vllm, model)["load_format"] == "auto"


def test_a_gguf_in_a_folder_of_its_own(vllm: StandIn, spoken: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    wb.convert(spoken, folder / "m.gguf", max_shard_tensors=8)
    config = engine(vllm, folder / "m.gguf")
    assert config["model_weights"] == str(folder / "m.gguf")
    assert (Path(config["model"]) / "config.json").is_file()


def test_a_second_registration_replaces_the_first(vllm: StandIn, forms: Mapping[str, Path]) -> None:
    folders: list[str] = []

    def folder_of(path: str, tokenizer: bool) -> plugin.ServedFolder:
        folders.append(path)
        return plugin.ServedFolder(path)

    def opener(path: str, native: bool) -> Any:
        return nullcontext()

    for _ in range(2):
        plugin.register(opener, folder_of)
    engine(vllm, forms["q8.gguf"])
    assert folders == [str(forms["q8.gguf"])]


# ---------------------------------------------------------------------- faults


def test_an_incomplete_checkpoint_is_an_error(vllm: StandIn, forms: Mapping[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"lacks 1 weight of the model: model\.other\.weight"):
        load(vllm, forms["hf"], model=Model([*llama_tensors(), "model.other.weight", "attn.k_scale"]))
    with pytest.raises(UsageError, match="no loader option is called weihgts"):
        load(vllm, forms["hf"], weihgts="x")
    with pytest.raises(UsageError, match="no weights"):
        load(vllm, tmp_path)


def test_types_of_the_file_and_of_the_model() -> None:
    arrays = {"a.weight": np.ones((2, 2), ml_dtypes.bfloat16), "a.bias": np.ones(2, np.float32)}
    from weighbridge.adapters.arrays import nodes_of

    found = dict(plugin.weights(plugin.ServedModel(nodes_of(arrays), False), torch.float16))
    assert {n: t.dtype for n, t in found.items()} == {"a.weight": torch.bfloat16, "a.bias": torch.float32}


@pytest.mark.slow
def test_the_real_vllm() -> None:
    pytest.importorskip("vllm", reason="THE REAL VLLM WASN'T RUN: it isn't installed; see tests/peers/run_vllm.py")
    subprocess.run([sys.executable, ROOT / "tests" / "peers" / "run_vllm.py", "--only", "bin"], check=True)
