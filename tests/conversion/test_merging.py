"""`wb merge` of models: results of mergekit, laws, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from safetensors.numpy import load_file, save_file
from tests.conversion.merging_cases import CONFIG, MODELS, RECIPES, shapes, tensors, write_models
from tests.llama import make_folder, tokenizer

import weighbridge as wb
from weighbridge.base.errors import FormatError, RefusedError, UsageError, WeighbridgeError
from weighbridge.cli.main import main
from weighbridge.conversion.merging.methods import METHODS
from weighbridge.conversion.merging.recipe import parse_recipe

GOLDEN = Path(__file__).parent / "golden" / "merging.npz"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("merging") / "models")


@pytest.fixture(autouse=True)
def here(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


def merged(source: Any, out: Path, **keywords: Any) -> dict[str, np.ndarray]:
    wb.merge(source, f"{out}/", **{"dtype": "f32", **keywords})
    return dict(load_file(out / "model.safetensors"))


def flat(values: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([values[key].reshape(-1) for key in sorted(values)])


def _with_tokens(folder: Path, model: str, order: Sequence[int] = ()) -> Path:
    """A model with a tokenizer. `order`: of its tokens and of its rows of embeddings."""
    data: Any = tokenizer()
    vocab = sorted(data["model"]["vocab"], key=data["model"]["vocab"].__getitem__)
    order = order or range(len(vocab))
    rng = np.random.default_rng(9)
    rows = {f"{name}.weight": rng.standard_normal((len(vocab), 8)) for name in ("model.embed_tokens", "lm_head")}
    values = tensors(model) | {name: value[order].astype("f4") for name, value in rows.items()}
    data["model"]["vocab"] = {vocab[old]: new for new, old in enumerate(order)}
    for token in data.get("added_tokens", ()):
        token["id"] = data["model"]["vocab"].get(token["content"], token["id"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": len(vocab)}))
    (folder / "tokenizer.json").write_text(json.dumps(data))
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    return folder


# ------------------------------------------------------------------------------------------------ mergekit


@pytest.mark.parametrize("name", RECIPES)
def test_the_results_are_mergekits(name: str, tmp_path: Path) -> None:
    got, expected = flat(merged(RECIPES[name], tmp_path / "out")), np.load(GOLDEN)[name]
    if "model_stock" in name:  # of opposed changes the base remains; mergekit's go beyond it
        expected = np.where(got == flat(tensors("base")), got, expected)
        assert np.mean(got == flat(tensors("base"))) < 0.05
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=2e-6)


def test_every_method_and_parameter_is_recorded() -> None:
    assert {recipe["merge_method"] for recipe in RECIPES.values()} | {"breadcrumbs"} == METHODS.keys()
    assert np.load(GOLDEN).files == list(RECIPES)


def _values_of(recipe: Any) -> list[tuple[list[Any], Any]]:
    """The numbers below `parameters`, each with the container and key that holds it."""
    found: list[tuple[list[Any], Any]] = []

    def visit(node: Any, inside: bool) -> None:
        rows = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in rows:
            if inside and isinstance(value, bool | int | float):
                found.append((node, key))
            visit(value, inside or key == "parameters")

    visit(recipe, False)
    return found


# Changes within the error of the arithmetic, or without effect: the reason is in the name of the recipe.
_NO_EFFECT = {("multislerp from a base", "eps"), ("breadcrumbs_ties", "rescale")}


@pytest.mark.parametrize("name", RECIPES)
def test_each_number_of_a_recipe_matters(name: str, tmp_path: Path) -> None:
    """A seeded fault: any other number gives another result than the recorded one."""
    expected = np.load(GOLDEN)[name]
    for n in range(len(_values_of(RECIPES[name]))):
        changed = copy.deepcopy(dict(RECIPES[name]))
        holder, key = _values_of(changed)[n]
        before = holder[key]
        other = before + 2 if key == "max_iter" else before * 0.5 or 0.3
        holder[key] = not before if isinstance(before, bool) else other
        if (name, key) not in _NO_EFFECT:
            assert np.abs(flat(merged(changed, tmp_path / f"out{n}")) - expected).max() > 5e-5, (key, before)


def test_opposed_changes_leave_the_base(tmp_path: Path) -> None:
    """mergekit's model_stock would go beyond the base, by any factor."""
    base, one = tensors("base"), tensors("one")
    (tmp_path / "opposed").mkdir()
    (tmp_path / "opposed" / "config.json").write_text(json.dumps(CONFIG))
    save_file({n: 2 * base[n] - one[n] for n in base}, tmp_path / "opposed" / "model.safetensors", {"format": "pt"})
    got = merged(["one", tmp_path / "opposed"], tmp_path / "out", method="model_stock", merge_base="base")
    for name, values in base.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


# ------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("linear", {"weight": [1, 0]}), ("slerp", {"t": 0.0}), ("nuslerp", {"weight": [1, 0]}),
        ("task_arithmetic", {"weight": [1, 0], "merge_base": "base"}),
        ("dare_ties", {"weight": [1, 0], "merge_base": "base"}),
    ],
)  # fmt: skip
def test_weights_of_1_and_0_give_the_first_model(method: str, given: dict[str, Any], tmp_path: Path) -> None:
    got = merged(["one", "two"], tmp_path / "out", method=method, **given)
    for name, values in tensors("one").items():
        if method in ("linear", "slerp", "nuslerp"):
            np.testing.assert_array_equal(got[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(got[name], values, atol=2e-7)


def test_ties_of_one_model_is_the_model(tmp_path: Path) -> None:
    got = merged(["one"], tmp_path / "out", method="ties", merge_base="base", dtype="bf16")
    wb.convert("one", tmp_path / "as-bf16", to="hf", dtype="bf16")
    raw = lambda path: (path / "model.safetensors").read_bytes()  # noqa: E731
    assert raw(tmp_path / "out") == raw(tmp_path / "as-bf16")
    assert got


RANDOM = [name for name, row in METHODS.items() if row.random]


@pytest.mark.parametrize("method", METHODS)
def test_threads_and_memory_change_no_byte(method: str, tmp_path: Path) -> None:
    """So does the order in which slabs are read."""
    row = METHODS[method]
    given: dict[str, Any] = {"method": method, "merge_base": "base" if row.base in ("needed", "optional") else None}
    given |= {"t": 0.3} if "t" in row.settings else {}
    given |= {"density": [0.5]} if "density" in row.per_model else {}
    given |= {"parameter": ["epsilon=0.1"]} if "epsilon" in row.settings else {}
    paths = ["one", "two"] if row.models[1] > 1 or row.base == "end" else ["one"]
    written = [
        flat(merged(paths, tmp_path / f"out{n}", **given, **how))
        for n, how in enumerate(({"jobs": 1}, {"jobs": 4}, {"jobs": 2, "max_memory": 2_000_000}))
    ]
    np.testing.assert_array_equal(written[0], written[1])
    np.testing.assert_array_equal(written[0], written[2])


@pytest.mark.parametrize("method", RANDOM)
def test_random_masks_depend_on_the_seed_and_keep_their_share(method: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": method, "merge_base": "base", "density": [0.5], "parameter": ["rescale=false"]}
    first = flat(merged(["one"], tmp_path / "a", **given))
    again = flat(merged(["one"], tmp_path / "b", **given, seed=0))
    other = flat(merged(["one"], tmp_path / "c", **given, seed=1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    base, one = flat(tensors("base")), flat(tensors("one"))
    kept = np.abs(first - one) < 1e-6
    assert np.all(kept | (np.abs(first - base) < 1e-6))  # an element is the model's or the base's
    assert abs(kept.mean() - 0.5) < 0.06


@pytest.mark.parametrize("method", RANDOM)
def test_rescaling_keeps_the_sum_of_magnitudes(method: str, tmp_path: Path) -> None:
    got = merged(
        ["one"], tmp_path / "out", method=method, merge_base="base", density=[0.5], parameter=["normalize=false"]
    )
    one, base = tensors("one"), tensors("base")
    for name in one:
        wanted, found = np.abs(one[name] - base[name]).sum(), np.abs(got[name] - base[name]).sum()
        assert abs(wanted - found) < 1e-4 * wanted, name


@pytest.mark.costly
def test_larger_elements_of_a_row_stay_more_often(tmp_path: Path) -> None:
    """Della: with density 0.5 and epsilon 0.4, 9 in 10 of the largest stay and 1 in 10 of the smallest."""
    kept = []
    for seed in range(20):
        given: dict[str, Any] = {"method": "della_linear", "merge_base": "base", "density": [0.5], "seed": seed}
        got = merged(["one"], tmp_path / f"{seed}", **given, parameter=["epsilon=0.4", "rescale=false"])
        base, one = tensors("base"), tensors("one")
        for name in (n for n, shape in shapes().items() if shape == (12, 8)):
            order = np.abs(one[name] - base[name]).argsort(axis=1)
            kept.append(np.take_along_axis(np.abs(got[name] - one[name]) < 1e-6, order, axis=1))
    rates = np.concatenate(kept).mean(axis=0)
    np.testing.assert_allclose(rates, np.linspace(0.1, 0.9, 8), atol=0.05)


@pytest.mark.parametrize("method", ["linear", "ties", "slerp"])
def test_formats_mix(method: str, tmp_path: Path) -> None:
    """A GGUF, an MLX folder and a PyTorch file with its config merge as the folders that they were made of do."""
    folders = {name: _with_tokens(tmp_path / name, name) for name in MODELS}
    wb.convert(folders["base"], tmp_path / "base.gguf", dtype="f32")
    wb.convert(folders["one"], tmp_path / "mlx", to="mlx", dtype="f32")
    wb.convert(folders["two"], tmp_path / "pt", to="torch", dtype="f32")
    given: dict[str, Any] = {"method": method} | ({"t": 0.3} if method == "slerp" else {})
    plain, others = [folders["one"], folders["two"]], [tmp_path / "mlx", tmp_path / "pt"]
    if method == "ties":
        given |= {"density": [0.4]}
        usual = merged(plain, tmp_path / "usual", **given, merge_base=folders["base"])
        got = merged(others, tmp_path / "got", **given, merge_base=tmp_path / "base.gguf", to="hf")
    else:
        usual = merged(plain, tmp_path / "usual", **given)
        got = merged(others, tmp_path / "got", **given, to="hf")
    assert usual.keys() == got.keys()
    for name in usual:
        np.testing.assert_array_equal(usual[name], got[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_a_merge_to_gguf_is_the_merge_converted(dtype: str, tmp_path: Path) -> None:
    paths = [_with_tokens(tmp_path / name, name) for name in ("one", "two")]
    merged(paths, tmp_path / "folder", method="slerp", t=0.4)
    wb.convert(tmp_path / "folder", tmp_path / "a.gguf", dtype=dtype)
    wb.merge(paths, tmp_path / "b.gguf", dtype=dtype, method="slerp", t=0.4)
    with wb.open(tmp_path / "a.gguf") as a, wb.open(tmp_path / "b.gguf") as b:
        assert set(a) == set(b)
        for name in a:
            assert bytes(a[name].raw()) == bytes(b[name].raw()), name


def test_quantized_inputs_are_decoded(tmp_path: Path) -> None:
    """A GGUF in Q8_0 merges as its decoded values do."""
    for name in ("a", "b"):
        make_folder(tmp_path / name, words=True)
    wb.quantize(tmp_path / "b", tmp_path / "b.gguf", "Q8_0", pure=True)
    wb.convert(tmp_path / "b.gguf", tmp_path / "decoded", to="hf", dtype="f32")
    usual = merged([tmp_path / "a", tmp_path / "decoded"], tmp_path / "usual", method="slerp", t=0.3)
    got = merged([tmp_path / "a", tmp_path / "b.gguf"], tmp_path / "got", method="slerp", t=0.3)
    for name in usual:
        np.testing.assert_array_equal(usual[name], got[name], err_msg=name)


@pytest.mark.parametrize(
    "options",
    [{"to": "mlx", "q_bits": 4, "q_group_size": 32}, {"scheme": "w8a8"}, {"scheme": "w4a16", "q_group_size": 32}],
)
@pytest.mark.parametrize("place", [0, 1])
def test_quantized_folders_are_decoded(options: dict[str, Any], place: int, tmp_path: Path) -> None:
    """Also the one whose config the result has."""
    for name in ("a", "b"):
        make_folder(tmp_path / name, words=True)
    wb.convert(tmp_path / "a", tmp_path / "packed", **{"to": "hf", **options})
    wb.convert(tmp_path / "packed", tmp_path / "decoded", to="hf", dtype="f32")
    paths = lambda name: [tmp_path / name, tmp_path / "b"][:: 1 - 2 * place]  # noqa: E731
    usual = merged(paths("decoded"), tmp_path / "usual", method="slerp", t=0.3)
    got = merged(paths("packed"), tmp_path / "got", method="slerp", t=0.3, to="hf")
    assert usual.keys() == got.keys()
    for name in usual:
        np.testing.assert_allclose(usual[name], got[name], atol=1e-6, err_msg=name)
    config = json.loads((tmp_path / "got" / "config.json").read_text())
    assert not {"quantization", "quantization_config"} & config.keys()
    with wb.plan_merge(paths("packed"), f"{tmp_path / 'again'}/", method="slerp", t=0.3, to="hf") as plan:
        assert any(note.startswith("quantized, so decoded") for note in plan.notes)


def test_quantized_ggufs_become_bf16(tmp_path: Path) -> None:
    """So does the type that the file states; another pass over quantized weights is refused, or allowed."""
    for name in ("a", "b"):
        make_folder(tmp_path / name, words=True)
        wb.quantize(tmp_path / name, tmp_path / f"{name}.gguf", "Q8_0", pure=True)
    given: dict[str, Any] = {"method": "slerp", "t": 0.5}
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    wb.merge(paths, tmp_path / "plain.gguf", **given)
    with wb.open(tmp_path / "plain.gguf") as model:
        assert model.metadata["general.file_type"] == 32  # LLAMA_FTYPE_MOSTLY_BF16
        assert {str(model[name].dtype) for name in model} == {"BF16", "F32"}
    with pytest.raises(RefusedError, match="quantized again"):
        wb.merge(paths, tmp_path / "again.gguf", **given, dtype="q8_0")
    wb.merge(paths, tmp_path / "again.gguf", **given, dtype="q8_0", allow_requantize=True)
    with wb.open(tmp_path / "again.gguf") as model:
        assert model.metadata["general.file_type"] == 7  # LLAMA_FTYPE_MOSTLY_Q8_0


def test_layers_are_counted_in_the_config(tmp_path: Path) -> None:
    got = merged(RECIPES["passthrough"], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 4
    assert got.keys() == shapes(4).keys()
    np.testing.assert_array_equal(
        got["model.layers.2.mlp.up_proj.weight"], tensors("two")["model.layers.1.mlp.up_proj.weight"]
    )


# ------------------------------------------------------------------------------------------------ vocabularies


def test_embeddings_meet_by_token(tmp_path: Path) -> None:
    data: Any = tokenizer()
    count = len(data["model"]["vocab"])
    plain = _with_tokens(tmp_path / "plain", "one")
    order = [*range(0, 8), *reversed(range(8, count))]
    moved = _with_tokens(tmp_path / "moved", "two", order)
    with pytest.raises(UsageError, match="different vocabularies"):
        wb.plan_merge([plain, moved], tmp_path / "no/", method="linear")
    got = merged([plain, moved], tmp_path / "out", method="linear", tokenizer_source="base")
    expected = load_file(plain / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        np.testing.assert_array_equal(got[name], expected[name])


# ------------------------------------------------------------------------------------------------ refused


_SLERP = {"merge_method": "slerp", "models": [{"model": "one"}, {"model": "two"}], "base_model": "one"}
# What is wrong -> (recipe, words of the message).
BAD: Mapping[str, tuple[Any, str]] = {
    "not an object": ([1], "object"),
    "no method": ({"models": [{"model": "one"}]}, "merge_method"),
    "an unknown method": ({"merge_method": "blend", "models": [{"model": "one"}]}, "no merge method"),
    "an unknown key": ({**_SLERP, "colour": 1}, "'colour'"),
    "models and slices": ({**_SLERP, "slices": []}, "either"),
    "neither": ({"merge_method": "linear"}, "either"),
    "no models": ({"merge_method": "linear", "models": []}, "list"),
    "a model without a name": ({"merge_method": "linear", "models": [{"parameters": {}}]}, r"models\[0\]"),
    "an unknown key of a model": ({"merge_method": "linear", "models": [{"model": "one", "lora": 1}]}, "'lora'"),
    "several modules": ({"merge_method": "linear", "modules": {"text_decoder": {}}}, "'text_decoder' isn't supported"),
    "modules and models": ({**_SLERP, "modules": {"default": {}}}, "either"),
    "an empty module": ({"merge_method": "linear", "modules": {"default": {}}}, "either"),
    "a module that is none": ({"merge_method": "linear", "modules": {"default": 3}}, "modules: default"),
    "an unknown key of a module": ({"merge_method": "linear", "modules": {"default": {"nix": 1}}}, "'nix'"),
    "a union of models without tokenizers": ({**_SLERP, "tokenizer_source": "union"}, "no tokenizer"),
    "no t": (_SLERP, "'t'"),
    "t that is text": ({**_SLERP, "parameters": {"t": "half"}}, "half"),
    "t without a matching filter": ({**_SLERP, "parameters": {"t": [{"filter": "nix", "value": 1}]}}, "'t'"),
    "a choice with an unknown key": ({**_SLERP, "parameters": {"t": [{"value": 1, "nix": 1}]}}, "choice"),
    "t that isn't finite": ({**_SLERP, "parameters": {"t": float("nan")}}, "nan"),
    "an unknown parameter": ({**_SLERP, "parameters": {"t": 0.5, "nix": 1}}, "'nix'"),
    "no base": ({"merge_method": "ties", "models": _SLERP["models"]}, "base"),
    "no weight": ({"merge_method": "linear", "models": _SLERP["models"]}, "'weight'"),
    "one model to interpolate": ({**_SLERP, "models": [{"model": "one"}], "parameters": {"t": 0.5}}, "not 0"),
    "three models to interpolate": (
        {**_SLERP, "models": [{"model": name} for name in MODELS], "parameters": {"t": 0.5}}, "not 2",
    ),
    "weights that cancel out": (
        {"merge_method": "linear", "models": [
            {"model": "one", "parameters": {"weight": 1}}, {"model": "two", "parameters": {"weight": -1}}]},
        "add up to 0",
    ),
    "a density above 1": (
        {"merge_method": "ties", "base_model": "base", "models": [
            {"model": "one", "parameters": {"weight": 1, "density": 1.5}}]},
        "density",
    ),
    "an epsilon as large as the density": (
        {"merge_method": "della", "base_model": "base", "parameters": {"epsilon": 0.5, "density": 0.5, "weight": 1},
         "models": [{"model": "one"}]},
        "epsilon",
    ),
    "a layer outside": (
        {"merge_method": "passthrough", "slices": [{"sources": [{"model": "one", "layer_range": [2, 5]}]}]}, "outside",
    ),
    "a range backwards": (
        {"merge_method": "passthrough", "slices": [{"sources": [{"model": "one", "layer_range": [2, 1]}]}]},
        "layer_range",
    ),
    "slices of different lengths": (
        {"merge_method": "linear", "slices": [{"sources": [
            {"model": "one", "layer_range": [0, 1]}, {"model": "two", "layer_range": [0, 2]}]}]},
        "different numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_recipes(name: str, tmp_path: Path) -> None:
    recipe, words = BAD[name]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(UsageError, match=words):
        wb.merge(tmp_path / "recipe.yaml", f"{tmp_path / 'out'}/")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("data", [b"a: [", b"\x00", b"&a [*a, " * 3000, b"a: !!python/object/apply:os.system [x]"])
def test_files_that_arent_recipes(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(data)
    with pytest.raises((FormatError, UsageError)):
        wb.plan_merge(tmp_path / "recipe.yaml", tmp_path / "out/")


@pytest.mark.parametrize(
    ("paths", "options", "words"),
    [
        (["one", "two"], {}, "method"),
        (["one"], {"t": 0.5}, "doesn't apply"),
        (["one", "two"], {"method": "linear", "weight": [1, 1, 1]}, "3 times"),
        (["one", "two"], {"method": "linear", "t": 0.5}, "'t'"),
        (["one", "two"], {"method": "linear", "seed": 3}, "seed"),
        (["one", "two"], {"method": "slerp", "t": 0.5, "weight": [1]}, "'weight'"),
        (["one", "two"], {"method": "slerp", "parameter": ["t"]}, "isn't a parameter"),
        (["one", "two"], {"method": "nix"}, "no merge method"),
    ],
)
def test_options_that_dont_apply(paths: list[str], options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        wb.plan_merge(paths, f"{tmp_path / 'out'}/", **options)


def test_models_that_dont_fit(tmp_path: Path) -> None:
    small = {**CONFIG, "num_hidden_layers": 2}
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(small))
    save_file(
        {n: v for n, v in tensors("one").items() if "layers.2" not in n}, tmp_path / "small" / "model.safetensors"
    )
    with pytest.raises(UsageError, match=r"has no model\.layers\.2"):
        wb.plan_merge(["one", tmp_path / "small"], f"{tmp_path / 'out'}/", method="linear")
    save_file({"a": np.ones(3, "f4")}, tmp_path / "bare.safetensors")
    with pytest.raises(WeighbridgeError, match="families"):
        wb.plan_merge(["one", tmp_path / "bare.safetensors"], f"{tmp_path / 'out'}/", method="linear")


def test_what_the_models_dont_share_is_noted(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({**CONFIG, "rope_theta": 500000.0}))
    extra = {"model.vision.weight": np.ones(3, "f4")}
    save_file(tensors("two") | extra, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    with wb.plan_merge(["one", tmp_path / "other"], f"{tmp_path / 'out'}/", method="linear") as plan:
        notes = "\n".join(plan.notes)
    for words in ("rope_theta", "model.vision.weight", "merged by linear"):
        assert words in notes


def test_a_rotation_in_another_spelling_isnt_a_difference(tmp_path: Path) -> None:
    theta = 10000.0
    newer = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    (tmp_path / "other").mkdir()
    for value, differs in ((theta, False), (500000.0, True)):
        config = {**newer, "rope_parameters": {"rope_type": "default", "rope_theta": value}}
        (tmp_path / "other" / "config.json").write_text(json.dumps(config))
        save_file(tensors("two"), tmp_path / "other" / "model.safetensors", {"format": "pt"})
        with wb.plan_merge(["one", tmp_path / "other"], f"{tmp_path / 'out'}/", method="linear") as plan:
            assert any("differs in" in note for note in plan.notes) is differs


# ------------------------------------------------------------------------------------------------ the command


def test_a_recipe_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"dtype": "bfloat16", **RECIPES["slerp"]}))
    assert main(["merge", str(tmp_path / "recipe.yaml"), f"{tmp_path / 'out'}/", "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert main(["merge", str(tmp_path / "recipe.yaml"), f"{tmp_path / 'out'}/"]) == 0
    with wb.open(tmp_path / "out") as result:
        assert {str(result[name].dtype) for name in result} == {"BF16"}
    capsys.readouterr()


def test_models_on_the_command_line_are_the_recipe(tmp_path: Path) -> None:
    words = ["--method", "slerp", "--t", "0.4", "--dtype", "f32"]
    assert main(["merge", "one", "two", f"{tmp_path / 'a'}/", *words]) == 0
    recipe = {"merge_method": "slerp", "base_model": "one", "models": [{"model": "one"}, {"model": "two"}]}
    expected = merged({**recipe, "parameters": {"t": 0.4}}, tmp_path / "b")
    np.testing.assert_array_equal(flat(dict(load_file(tmp_path / "a" / "model.safetensors"))), flat(expected))


def test_the_parameters_of_a_module_come_before_those_of_the_top() -> None:
    """As in mergekit, whose result for the recorded recipe is the same with another weight at the top."""
    case = RECIPES["the module of a language model"]
    again = {**case, "parameters": {**case["parameters"], "weight": 0.9}}
    assert parse_recipe(again) == parse_recipe(case)
    assert parse_recipe(case).parameters == {"normalize": False, "weight": 0.3}
