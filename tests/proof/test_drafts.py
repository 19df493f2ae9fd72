"""Models that only run beside another, as drafts of its tokens: the reference's very file, one that llama.cpp loads,
and the same tensors after the way back. What they compute can't be asked of either without the other model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import families, gguf_file, models, ours, reference_converter
from tests.oracles.families.deepseek4 import DEEPSEEK_V4, DSPARK, dspark_shapes
from tests.oracles.families.drafts import TARGETS
from tests.oracles.folders import assert_same, tensors
from tests.oracles.llama_loads import Judge

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.arch.naming import MappingError

pytestmark = pytest.mark.oracle

DRAFTS = ("gemma4-assistant", "gemma4-unified-assistant")
WITH_TARGET = [name for name, case in families.CASES.items() if case.target]
CONVERTED = [name for name in WITH_TARGET if families.CASES[name].judged]
RETURNING = [name for name in WITH_TARGET if families.CASES[name].returns]
INSIDE = replace(
    families.CASES["deepseek4-published"], name="deepseek4-dspark",
    options=DEEPSEEK_V4 | DSPARK, shapes=families.CASES["deepseek4"].shapes | dspark_shapes(3, 3, 32),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("drafts")
    return cache(lambda name: models.build(families.CASES[name], parent / name))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("targets")
    return cache(lambda name: models.build(TARGETS[name], parent / name))


@pytest.mark.parametrize("name", DRAFTS)
def test_the_file_is_the_reference_s_and_leads_back(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = families.CASES[name]
    mine = ours.to_gguf(folder(name), tmp_path / "mine" / f"{name}.gguf", "f32", pre=case.pre)
    (tmp_path / "theirs").mkdir()
    theirs = reference_converter.convert(folder(name), tmp_path / "theirs" / f"{name}.gguf", "f32", pre=case.pre)
    found, expected = gguf_file.read(mine), gguf_file.read(theirs)
    assert gguf_file.differences(found, expected) == []
    judge = Judge()
    assert judge.refusal(mine) is None
    judge.close()
    back = ours.to_folder(mine, tmp_path / name)
    original, returned = tensors(folder(name)), tensors(back)
    assert returned.keys() == original.keys()
    assert [n for n in original if not returned[n].equal(original[n])] == []
    config = json.loads((back / "config.json").read_text())
    assert config["backbone_hidden_size"] == case.options["backbone_hidden_size"]
    assert "backbone_hidden_size" not in config["text_config"]


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", CONVERTED)
def test_with_its_target_the_file_is_the_reference_s(
    name: str, dtype: str, folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    case, other = families.CASES[name], target(families.CASES[name].target)
    pre = TARGETS[case.target].pre
    mine, theirs = (tmp_path / side / f"{name}.gguf" for side in ("mine", "theirs"))
    theirs.parent.mkdir()
    wb.convert(folder(name), mine, dtype=dtype, pre=pre, target_model=other)
    flags = ("--target-model-dir", str(other))
    reference_converter.run(reference_converter.Job(str(folder(name)), str(theirs), dtype, pre, case.hparams, flags))
    assert gguf_file.differences(gguf_file.read(mine), gguf_file.read(theirs)) == []
    judge = Judge()
    assert judge.refusal(mine) is None
    judge.close()


@pytest.mark.costly
@pytest.mark.parametrize("name", RETURNING)
def test_and_leads_back_to_a_folder_that_makes_it_again(
    name: str, folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    case, other = families.CASES[name], target(families.CASES[name].target)
    first, again = tmp_path / f"{name}.gguf", tmp_path / "again" / f"{name}.gguf"
    pre = TARGETS[case.target].pre
    wb.convert(folder(name), first, dtype="f32", pre=pre, target_model=other)
    back = ours.to_folder(first, tmp_path / name)
    given, returned = ({_plain(n): t for n, t in tensors(side).items()} for side in (folder(name), back))
    lost = {*case.unkept, *(n for n in given if n.endswith(case.turned))}
    assert_same({n: t for n, t in returned.items() if n not in lost}, given, lost)
    wb.convert(back, again, dtype="f32", pre=pre, target_model=other)
    found, expected = (gguf_file.sorted_by_name(gguf_file.read(path)) for path in (again, first))
    assert gguf_file.differences(found, expected, allowed=_of_the_folder) == []


def _plain(name: str) -> str:
    """A name without the prefixes that publishers give it or not."""
    plain = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    return plain.replace("encoder.fc.", "fc.").replace("encoder.output_norm_enc.", "hidden_norm.")


def _of_the_folder(key: str) -> bool:
    """Whether a key tells of the folder alone: its name, and the weights' number, from which the size is guessed."""
    return key.startswith("general.") and key not in ("general.file_type", "general.architecture")


def test_a_draft_needs_its_target(folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path) -> None:
    draft, other, out = folder("eagle3"), target("llama"), tmp_path / "x.gguf"
    with pytest.raises(UsageError, match="LlamaForCausalLMEagle3 is a draft model") as error:
        wb.convert(draft, out)
    assert "--target-model" in str(error.value.hint)
    with pytest.raises(UsageError, match="doesn't apply to LlamaForCausalLM"):
        wb.convert(other, out, target_model=other)
    with pytest.raises(UsageError, match=r"isn't a folder with a config\.json"):
        wb.convert(draft, out, target_model=tmp_path)
    with pytest.raises(UsageError, match="LlamaForCausalLMEagle3 is a draft model"):
        wb.quantize(draft, out, "q4_k_m")
    assert not out.exists()
    wb.quantize(draft, out, "q8_0", target_model=other, pre=TARGETS["llama"].pre)
    with wb.open(out) as made:
        assert made.metadata["eagle3.target_layers"] == [2, 4, 5]
        assert made["d2t"].dtype == "I64"


@pytest.mark.parametrize(("key", "value"), [("vocab_size", 705), ("hidden_size", 96), ("num_hidden_layers", 3)])
def test_another_target_is_refused_with_both_numbers(
    key: str, value: int, folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(target("llama"), other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(FormatError) as error:
        wb.convert(folder("eagle3"), tmp_path / "x.gguf", target_model=other)
    assert str(value) in str(error.value)
    assert str({"num_hidden_layers": 4}.get(key, config[key])) in str(error.value)


@pytest.mark.parametrize(("at", "value", "reason"), [(1, 0, "a token twice"), (5, 704, "outside the vocabulary")])
def test_a_map_to_no_token_or_to_one_twice_is_refused(
    at: int, value: int, reason: str, folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    draft = tmp_path / "draft"
    shutil.copytree(folder("eagle3"), draft)
    given = tensors(draft)
    given["d2t"][at] = value - at
    save_file(given, draft / "model.safetensors")
    with pytest.raises(FormatError, match=reason):
        wb.convert(draft, tmp_path / "x.gguf", target_model=target("llama"), pre=TARGETS["llama"].pre)
    assert not (tmp_path / "x.gguf").exists()


def test_flags_of_the_same_tokens_are_left_out_with_a_note(
    folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import save_file

    draft = tmp_path / "draft"
    shutil.copytree(folder("eagle3"), draft)
    flags = {"t2d": torch.arange(704) % 2 == 0}
    save_file(tensors(draft) | flags, draft / "model.safetensors")
    made = wb.convert(draft, tmp_path / "x.gguf", target_model=target("llama"), pre=TARGETS["llama"].pre)
    assert any("t2d" in note for note in made.notes)


def test_a_row_for_the_target_s_embedding_is_not_lost_in_silence(
    folder: Callable[[str], Path], target: Callable[[str], Path], tmp_path: Path
) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(folder("dflash"), draft)
    (draft / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"mask_embedding\.pt"):
        wb.convert(draft, tmp_path / "x.gguf", target_model=target("qwen3"))


# ---- a draft inside its target's folder


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(INSIDE, tmp_path_factory.mktemp("inside") / "model")


def test_a_draft_inside_its_target_s_folder_is_the_reference_s(inside: Path, tmp_path: Path) -> None:
    mine, theirs = (tmp_path / side / "x.gguf" for side in ("mine", "theirs"))
    theirs.parent.mkdir()
    made = wb.convert(inside, mine, draft=True, pre=INSIDE.pre)
    flags = ("--dspark", "--target-model-dir", str(inside))
    reference_converter.run(
        reference_converter.Job(str(inside), str(theirs), "auto", INSIDE.pre, INSIDE.hparams, flags)
    )
    assert gguf_file.differences(gguf_file.read(mine), gguf_file.read(theirs)) == []
    judge = Judge()
    assert judge.refusal(mine) is None
    judge.close()
    assert wb.verify(mine).ok
    theirs_alone = [name for name in tensors(inside) if not name.startswith("mtp.")]
    (left,) = made.losses
    assert left.message.startswith(f"left out, as asked: {len(theirs_alone)} tensors of its target")


def test_a_draft_is_compared_with_that_of_its_target_s_folder(inside: Path, tmp_path: Path) -> None:
    draft, whole = tmp_path / "draft.gguf", tmp_path / "whole.gguf"
    wb.convert(inside, draft, draft=True, pre=INSIDE.pre)
    wb.convert(inside, whole, pre=INSIDE.pre)
    proved = wb.prove(inside, draft)
    assert (proved.verdict, [c.name for c in proved.checks if c.verdict == "not-checked"]) == ("incomplete", ["run"])
    assert wb.prove(inside, draft, run=False).verdict == "same"
    assert wb.prove(inside, whole, run=False).verdict == "same"
    assert wb.prove(whole, draft, run=False).verdict == "different"
    assert not [row for row in wb.diff(inside, draft).tensors if row.kind in ("added", "removed")]


@pytest.mark.parametrize("key", ["dspark_block_size", "dspark_noise_token_id"])
def test_a_draft_without_a_key_that_it_needs_is_refused(key: str, inside: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(inside, broken)
    config = json.loads((broken / "config.json").read_text())
    del config[key]
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=f"{key}: is missing"):
        wb.convert(broken, tmp_path / "x.gguf", draft=True)


@pytest.mark.parametrize("added", ["mtp.0.norm.weight", "mtp.1.e_proj.weight"])
def test_a_further_tensor_of_a_draft_is_named(added: str, inside: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    broken = tmp_path / "broken"
    shutil.copytree(inside, broken)
    arrays = tensors(inside)
    save_file(arrays | {added: arrays["norm.weight"].clone()}, broken / "model.safetensors")
    with pytest.raises(MappingError, match=added.replace(".", r"\.")):
        wb.convert(broken, tmp_path / "x.gguf", draft=True)


def test_the_target_s_conversion_names_the_command_of_its_draft(inside: Path, tmp_path: Path) -> None:
    made = wb.plan_convert(inside, tmp_path / "x.gguf", pre=INSIDE.pre)
    with made:
        (left,) = [loss for loss in made.losses if "mtp." in loss.message]
    assert left.message.endswith("wb convert SRC DST.gguf --draft writes it")
    keyless = Path(shutil.copytree(inside, tmp_path / "keyless"))
    config = json.loads((keyless / "config.json").read_text())
    kept = {key: value for key, value in config.items() if not key.startswith("dspark")}
    (keyless / "config.json").write_text(json.dumps(kept))
    with wb.plan_convert(keyless, tmp_path / "x.gguf", pre=INSIDE.pre) as made:
        (left,) = [loss for loss in made.losses if "mtp." in loss.message]
    assert left.message.endswith("another part of the model, mtp.*")


def test_a_target_that_does_not_see_has_no_mmproj_file(inside: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="has no vision, and llama"):
        wb.convert(inside, tmp_path / "x.gguf", mmproj=True)
    assert not any("towers" in note for note in wb.fit(inside, device="8GB").notes)


def test_parts_of_a_draft_may_be_in_any_of_its_blocks(inside: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    moved = tmp_path / "moved"
    shutil.copytree(inside, moved)
    parts = ("main_proj", "main_norm", "norm.", "hc_head", "markov_head", "confidence_head")
    given = {n: t for n, t in tensors(inside).items() if n.startswith("mtp.")}
    save_file({_in_block_1(n) if n[6:].startswith(parts) else n: t for n, t in given.items()} | {
        n: t for n, t in tensors(inside).items() if n not in given
    }, moved / "model.safetensors")  # fmt: skip
    files = []
    for folder in (inside, moved):
        files.append(tmp_path / f"{folder.name}.gguf")
        wb.convert(folder, files[-1], draft=True, pre=INSIDE.pre, name="x")
    assert gguf_file.differences(*(gguf_file.sorted_by_name(gguf_file.read(path)) for path in files)) == []


def _in_block_1(name: str) -> str:
    return f"mtp.1.{name[6:]}"


def test_a_draft_is_quantized_from_its_target_s_folder(inside: Path, tmp_path: Path) -> None:
    whole, two, direct = (tmp_path / f"{name}.gguf" for name in ("whole", "two", "direct"))
    wb.convert(inside, whole, draft=True, pre=INSIDE.pre, name="x")
    wb.quantize(whole, two, "q8_0", allow_requantize=True)
    wb.quantize(inside, direct, "q8_0", draft=True, pre=INSIDE.pre, name="x", allow_requantize=True)
    assert gguf_file.differences(gguf_file.read(direct), gguf_file.read(two)) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target_model": "."}, "target_model doesn't apply with draft"),
        ({"with_mmproj": True}, "with_mmproj=True doesn't apply with draft"),
        ({"mmproj": True}, "draft=True doesn't apply to an mmproj file"),
        ({"to": "hf"}, "draft=True doesn't apply to a Hugging Face folder"),
    ],
)
def test_options_of_other_files_are_refused(options: dict[str, Any], reason: str, inside: Path, tmp_path: Path) -> None:
    target = tmp_path / ("x" if "to" in options else "x.gguf")
    with pytest.raises(UsageError, match=reason):
        wb.convert(inside, target, draft=True, pre=INSIDE.pre, **options)
    assert not target.exists()


@pytest.mark.parametrize("name", ["deepseek4", "dspark-deepseek4"])
def test_a_folder_without_a_draft_is_refused(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="draft=True doesn't apply to DeepseekV4"):
        wb.convert(folder(name), tmp_path / "x.gguf", draft=True)


def test_a_tensor_of_a_draft_without_a_block_is_named(inside: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    broken = tmp_path / "broken"
    shutil.copytree(inside, broken)
    save_file(tensors(inside) | {"mtp.x.norm.weight": tensors(inside)["norm.weight"]}, broken / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"mtp\.x\.norm\.weight"):
        wb.convert(broken, tmp_path / "x.gguf", draft=True)
