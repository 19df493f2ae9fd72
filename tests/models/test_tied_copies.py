"""Models whose output matrix is their embedding: a GGUF has a copy exactly if llama.cpp's graph needs one, and a folder
made from it has not. Judges: llama.cpp's loader, and transformers' numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file
from tests.containers._gguf_models import Metadata, Tensors, render
from tests.models.family_judges import _nodes, golden
from tests.models.test_llamacpp import family_model, judge
from tests.mutation import red
from tests.oracles import llamacpp, models
from tests.oracles.llama_loads import Judge
from tests.oracles.models import CASES, probe_of

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import RefusedError
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf import container as gguf
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingError
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.llamacpp import table
from weighbridge.models.mlxlm.candidate import table as mlx_table

__all__ = ["judge"]
OUTPUT, EMBEDDING = "output.weight", "token_embd.weight"
#: The recorded models with a head for tokens that may be the embedding.
HEADED = [
    name
    for name, recorded in golden().items()
    if "keys" in recorded
    and name != "qwen3-tts"  # its embedding has rows of another vocabulary, too
    and any(slot[0] == OUTPUT for slot in recorded["gguf"])
    and any(slot[0] == EMBEDDING for slot in recorded["gguf"])
]

#: Classes without ties: an output of their own is required.
UNTIED = {
    "baichuan", "baichuan2", "chatglm", "chatglm-plain", "codeshell", "llada", "plamo", "qwen1", "rwkv6", "rwkv7",
    "talkie", "talkie-silent", "wavtokenizer",
}  # fmt: skip
#: The output has another factor than the embedding, so a GGUF has both, although llama.cpp loads a file without it.
SCALED = {"falcon-h1", "falcon-h1-auto", "falcon-h1-norm"}


def written(name: str, tied: bool) -> Tensors | None:
    """The tensors of the model's GGUF by the family's table; None if its class doesn't tie."""
    recorded = golden()[name]
    config, types = json.loads(json.dumps(recorded["config"])), {slot: kind for slot, kind, *_ in recorded["gguf"]}
    for part in (config, config.get("text_config", {})):
        part["tie_word_embeddings"] = tied
    family: Family = family_of_hf(config)
    sizes = family.sizes_from_hf(config)
    roles = {at: node for at, node in family.load("hf", sizes, _nodes(name)).items() if not tied or at != ("head", ())}
    try:
        named = family.save("gguf", sizes, roles)
    except MappingError as error:
        if error.report.missing != (OUTPUT,):
            raise
        return None
    keys = family.metadata_names()
    return [(n, Spec(t.spec.shape, BY_NAME[types[n]])) for n, t in named.items() if n not in keys]


def file_of(path: Path, slots: Tensors, keys: Metadata) -> Path:
    path.write_bytes(render(gguf.layout(slots, keys), lambda name, size: bytes(size)))
    return path


@pytest.mark.oracle
@pytest.mark.parametrize("name", HEADED)
def test_every_family_s_gguf_has_the_output_that_llama_cpp_needs(name: str, judge: Judge, tmp_path: Path) -> None:
    keys, recorded = family_model(name)
    path = tmp_path / "m.gguf"
    if (refusal := judge.refusal(file_of(path, recorded, keys))) is not None:
        pytest.skip(f"llama.cpp refuses the model whatever its output is: {refusal}")
    needed = judge.refusal(file_of(path, [slot for slot in recorded if slot[0] != OUTPUT], keys)) is not None
    assert wb.verify(path).verdicts[0].accepts is not needed
    for tied in (True, False):
        slots = written(name, tied)
        if slots is None:
            assert tied
            assert name in UNTIED
            continue
        assert (OUTPUT in dict(slots)) is (needed or not tied or name in SCALED), tied
        assert judge.refusal(file_of(path, slots, keys)) is None, tied


#: An output's table, in one that others take theirs from, with a factor, with names of its own.
RUN = ("olmo2", "mimo2", "gptneox", "apertus")
CONFIG = "config.json"


@pytest.fixture(scope="module", params=RUN)
def tied_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    case = CASES[request.param]
    case = replace(case, options={**case.options, "tie_word_embeddings": True}, save={})
    return case.name, models.build(case, tmp_path_factory.mktemp("tied") / case.name)


def names_in(folder: Path) -> set[str]:
    return {name for file in folder.glob("*.safetensors") for name in load_file(file)}


@pytest.mark.oracle
def test_llama_cpp_computes_what_a_tied_model_does(tied_folder: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = tied_folder
    with wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f32", pre=CASES[name].pre) as plan:
        assert f"{OUTPUT} is a copy of {EMBEDDING}: llama.cpp's graph needs both" in plan.notes
        assert not any("tie_word_embeddings" in loss.message for loss in plan.losses)
        plan.run()
    with llamacpp.Model(tmp_path / "m.gguf") as model:
        found = model.logits(probe_of(name))
    assert models.relative_error(found, models.logits(folder, probe_of(name))) < (5e-3 if CASES[name].gelu else 2e-4)
    assert wb.diff(folder, tmp_path / "m.gguf").tensors == ()
    assert settings_of(folder, tmp_path / "m.gguf") == "same"


def settings_of(a: Path, b: Path) -> str:
    """What `wb prove` says of the settings; Apertus' class takes no base frequency outside of its rotation."""
    (check,) = (check for check in wb.prove(a, b, run=False).checks if check.name == "settings")
    return "same" if all("no table reads it" in line for line in check.details) else check.message


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_the_way_back_adds_no_tensor(dtype: str, tied_folder: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = tied_folder
    wb.convert(folder, tmp_path / "m.gguf", dtype=dtype, pre=CASES[name].pre)
    with wb.plan_convert(tmp_path / "m.gguf", tmp_path / "back", to="hf") as plan:
        assert f"{OUTPUT} is a copy of {EMBEDDING}: left out, and the config ties them" in plan.notes
        plan.run()
    assert json.loads((tmp_path / "back" / CONFIG).read_text())["tie_word_embeddings"] is True
    assert not any("lm_head" in tensor or "embed_out" in tensor for tensor in names_in(tmp_path / "back"))


@pytest.mark.oracle
def test_a_tied_output_keeps_its_factor(tmp_path: Path) -> None:
    """Falcon-H1 multiplies embeddings and logits by two numbers. A GGUF without output, as the reference converter
    writes it, has the embedding's in both places."""
    case = replace(CASES["falcon-h1"], options={**CASES["falcon-h1"].options, "tie_word_embeddings": True})
    folder, ids = models.build(case, tmp_path / "folder"), probe_of("falcon-h1")
    expected = models.logits(folder, ids)
    with wb.plan_convert(folder, tmp_path / "m.gguf", dtype="f32", pre=case.pre) as plan:
        assert f"{OUTPUT} is a multiple of {EMBEDDING}: llama.cpp's graph needs both" in plan.notes
        assert not any("tie_word_embeddings" in loss.message for loss in plan.losses)
        plan.run()
    with llamacpp.Model(tmp_path / "m.gguf") as model:
        assert models.relative_error(model.logits(ids), expected) < 2e-4
    assert settings_of(folder, tmp_path / "m.gguf") == "same"
    wb.convert(tmp_path / "m.gguf", tmp_path / "back", to="hf")
    assert models.relative_error(models.logits(tmp_path / "back", ids), expected) < 2e-5
    wb.slice(tmp_path / "m.gguf", tmp_path / "theirs.gguf", drop=(OUTPUT,))
    with llamacpp.Model(tmp_path / "theirs.gguf") as model:
        assert models.relative_error(model.logits(ids), expected) > 0.1


@pytest.mark.oracle
def test_an_output_of_its_own_stays(tmp_path: Path) -> None:
    """One that differs from the embedding in a single number, and one in another type."""
    folder = models.build(replace(CASES["olmo2"], save={}), tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    for change in ("number", "type"):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        if change == "number":
            tensors["lm_head.weight"][-1, -1] += 1
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        options: dict[str, Any] = {"output_tensor_type": "f16"} if change == "type" else {}
        wb.quantize(folder, tmp_path / f"{change}.gguf", ftype="f32", **options)
        with wb.plan_convert(tmp_path / f"{change}.gguf", tmp_path / change, to="hf") as plan:
            assert not any("copy" in note for note in plan.notes)
            plan.run()
        assert "lm_head.weight" in names_in(tmp_path / change)
        assert json.loads((tmp_path / change / CONFIG).read_text())["tie_word_embeddings"] is False


@pytest.mark.oracle
def test_a_missing_output_is_no_copy(tmp_path: Path) -> None:
    """A download that lacks the output of an untied model."""
    folder = models.build(replace(CASES["olmo2"], save={}), tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(RefusedError, match=rf"missing: {OUTPUT}"):
        wb.plan_convert(folder, tmp_path / "m.gguf")


@pytest.mark.oracle
@pytest.mark.mutation
@pytest.mark.parametrize("architecture", sorted(a for a, names in table().needed.items() if OUTPUT in names))
def test_each_row_is_needed(architecture: str, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a model's output isn't copied, or a file without output passes."""
    known = [name for name in HEADED if family_model(name)[0]["general.architecture"].value == architecture]
    if not known:
        pytest.skip("its output has no recorded model")
    rows = table().needed
    needed = {**rows, architecture: [name for name in rows[architecture] if name != OUTPUT]}
    wrong = msgspec.structs.replace(table(), needed=needed)
    for module in ("weighbridge.models.llamacpp", "weighbridge.models.llamacpp.candidate"):
        monkeypatch.setattr(f"{module}.table", lambda: wrong)
    for family in families().values():
        family.__dict__.pop("copied", None)
    try:
        check = partial(test_every_family_s_gguf_has_the_output_that_llama_cpp_needs, known[0], judge, tmp_path)
        assert red(check)
    finally:
        for family in families().values():
            family.__dict__.pop("copied", None)


@pytest.mark.oracle
def test_mlx_lm_s_classes_without_ties_are_known() -> None:
    """Those whose source has an output matrix and reads no `tie_word_embeddings`."""
    folder = Path(pytest.importorskip("mlx_lm").__file__).parent / "models"
    for family in families().values():
        head, rules = family.rows.get("head"), family.document.mlx
        if "mlx" not in family.dialects or head is None or head.tied is None:
            continue
        for architecture in family.architectures.values():
            name = rules.model_type.get(architecture.model_type, architecture.model_type)
            file = folder / f"{name}.py"
            text = file.read_text() if file.exists() else ""
            if re.search(r"self\.(lm_head|embed_out) = nn", text) and not re.search(
                "tie_word_embeddings|as_linear", text
            ):
                assert name in mlx_table().untied or name == "llama4", name  # whose text part decides
