"""Every loader gives every weight of a model of several parts, equal to transformers' own, or refuses with the names:
never a random one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)
transformers: Any = pytest.importorskip("transformers", reason=NOTHING)
pytest.importorskip("safetensors", reason=NOTHING)

from tests.oracles import parts  # noqa: E402

import weighbridge as wb  # noqa: E402
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError  # noqa: E402
from weighbridge.models.names import ALIASES  # noqa: E402
from weighbridge.safetensors import safe_open  # noqa: E402

UNKNOWN = ("whisper", "clip", "tokens")  # models that no family's table describes
STYLES = ("stored", "logical", "canonical", "hf", "gguf", "mlx", *ALIASES)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    here = tmp_path_factory.mktemp("models")
    yield {name: parts.make(name, here / name) for name in parts.MODELS}
    shutil.rmtree(here)


def blank(folder: Path) -> Any:
    """The class's module with other weights."""
    torch.manual_seed(99)
    kind = parts.class_of(folder)
    return kind(kind.config_class.from_pretrained(folder))


def by_load(folder: Path, names: str | None = None) -> Any:
    module = blank(folder)
    report = wb.load(folder, into=module, names=names)
    assert report, report
    return module


def by_pretrained(folder: Path) -> Any:
    return wb.from_pretrained(parts.class_of(folder), folder)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "from_pretrained": by_pretrained,
    "load": by_load,
    "load by hub names": lambda folder: by_load(folder, "hf"),
}


@pytest.mark.parametrize("name", [n for n in parts.MODELS if n != "stranger"])
def test_modules_have_the_weights_that_transformers_loads(name: str, models: Mapping[str, Path]) -> None:
    folder = models[name]
    want = parts.class_of(folder).from_pretrained(folder).state_dict()
    for how, load in LOADERS.items():
        if how == "load by hub names" and name in UNKNOWN:
            with pytest.raises(UnsupportedError, match="no family has"):
                load(folder)
            continue
        found = load(folder).state_dict()
        assert found.keys() == want.keys()
        assert [key for key in want if not torch.equal(found[key], want[key])] == [], how


@pytest.mark.parametrize("style", STYLES)
def test_views_have_every_tensor(style: str, models: Mapping[str, Path]) -> None:
    """Under names of any style, and of a provider: as many elements as the file, and no tensor twice."""
    for name, folder in models.items():
        elements = parts.elements(folder / "model.safetensors")
        want = sum(elements.values())
        if refused := refusal(name, style):
            with (
                pytest.raises((UnsupportedError, UsageError, FormatError), match=refused),
                wb.open(
                    folder,
                    names=style,  # type: ignore[arg-type]
                ),
            ):
                pass
            continue
        with wb.open(folder, names=style) as model:  # type: ignore[arg-type]
            want -= sum(elements[n] for n in model.unnamed)
            assert model.unnamed == () or (name, style) == ("masked", "gguf")
            assert sum(model[n].size for n in model) == want, name
        with wb.provider(folder, names=style) as weights:
            assert sum(torch.Size(weights.shape(n)).numel() for n in weights) == want, name


def refusal(name: str, style: str) -> str:
    if style in ("stored", "logical"):
        return ""
    if name in UNKNOWN:
        return "no family has the architecture"
    if name == "stranger":
        return "without a rule: nobody.knows.me"
    return "unknown names 'mlx'" if style == "mlx" and name in ("bert", "masked", "qwen2vl") else ""


def test_the_drop_in_has_every_tensor(models: Mapping[str, Path]) -> None:
    for folder in models.values():
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            found = {name: file.get_tensor(name).numel() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        assert found == parts.elements(folder / "model.safetensors")


def test_weights_that_are_not_there_are_named_and_never_random(models: Mapping[str, Path], tmp_path: Path) -> None:
    llava, kind = models["llava"], transformers.LlavaForConditionalGeneration
    wb.convert(llava, tmp_path / "llava.gguf", tokenizer=False)
    wb.convert(llava, tmp_path / "mlx", to="mlx")
    wb.slice(llava, tmp_path / "text", drop=["vision_tower.*"])
    with pytest.raises(FormatError, match=r"the file lacks 39 of LlavaForConditionalGeneration's weights: .*vision"):
        wb.from_pretrained(kind, tmp_path / "text")
    for source in (tmp_path / "mlx", tmp_path / "llava.gguf"):
        with pytest.raises(UsageError, match="is of type llama, LlavaForConditionalGeneration is for llava"):
            wb.from_pretrained(kind, source)
    with pytest.raises(FormatError, match=r"lacks 1 of LlamaForSequenceClassification's weights: score\.weight"):
        wb.from_pretrained(transformers.LlamaForSequenceClassification, models["buffers"])
    model = wb.from_pretrained(transformers.LlamaForSequenceClassification, models["buffers"], strict=False)
    assert model.score.weight.shape == (2, 32)
    with pytest.raises(UsageError, match=r"not in the file: model\.vision_tower"):
        wb.load(models["buffers"], into=kind(kind.config_class.from_pretrained(llava)))
