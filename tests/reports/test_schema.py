"""The documented JSON schema is what the reports are: every key, in both directions, and real output of its types."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.llama import llama_tensors, make_folder
from tests.reports import makers as m

from weighbridge.base.plain import plain
from weighbridge.cli.main import main
from weighbridge.containers.base import Finding
from weighbridge.conversion import transform
from weighbridge.conversion.archive import pack
from weighbridge.conversion.checkpoint import strip
from weighbridge.conversion.extraction import plan as extraction
from weighbridge.conversion.extraction.changes import ExtractedMatrix
from weighbridge.conversion.quantize import imatrix_report as importance_report
from weighbridge.forward.imatrix import CalibrationReport
from weighbridge.forward.quality import TextQualityReport
from weighbridge.forward.scores import SampleMean
from weighbridge.models.open import open_model
from weighbridge.models.stored_tensors import Dropped
from weighbridge.models.tensor_parallel import rank_set as ranks
from weighbridge.models.transform import base as operations
from weighbridge.models.transform import rename
from weighbridge.reports import anatomy, get, identify
from weighbridge.reports.hash import checksum_files, digests
from weighbridge.reports.inspect import adapter_info, model_info, schemes
from weighbridge.reports.inspect import report as inspect
from weighbridge.reports.lineage import model as lineage_model
from weighbridge.reports.microscope import blocks
from weighbridge.reports.prove import model as prove_model
from weighbridge.reports.sbom import report as sbom_report
from weighbridge.reports.scan import engine
from weighbridge.reports.scan import model as scan
from weighbridge.reports.signature import model as signature_model
from weighbridge.reports.signature import sign as signature_sign
from weighbridge.reports.statistics import heat
from weighbridge.reports.statistics import tensor as statistics
from weighbridge.reports.verify import report as verify

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schema.md"
CLASSES: dict[tuple[str, str], type] = {
    ("identify", ""): identify.IdentifyReport,
    ("identify", "file line"): identify.FileLine,
    ("inspect", ""): inspect.InspectReport,
    ("inspect", "model"): model_info.ModelInfo,
    ("inspect", "tokenizer"): model_info.Tokenizer,
    ("inspect", "adapter"): adapter_info.AdapterInfo,
    ("inspect", "quantization"): model_info.Quantization,
    ("inspect", "file"): inspect.InspectedFile,
    ("inspect", "dtype"): inspect.DTypeRow,
    ("inspect", "tensor"): inspect.InspectedTensor,
    ("inspect", "scheme"): schemes.SchemeSummary,
    ("inspect", "ranks"): ranks.RankStatus,
    ("inspect", "role"): schemes.Layers,
    ("calibration", ""): CalibrationReport,
    ("text-quality", ""): TextQualityReport,
    ("text-quality", "sample mean"): SampleMean,
    ("importance", ""): importance_report.ImatrixReport,
    ("importance", "entry"): importance_report.EntryStats,
    ("importance", "fit"): importance_report.ModelFit,
    ("importance", "wrong size"): importance_report.WrongSize,
    ("anatomy", ""): anatomy.AnatomyReport,
    ("anatomy", "part"): anatomy.RegionRow,
    ("anatomy", "share"): anatomy.KindTotal,
    ("anatomy", "place"): anatomy.TensorPosition,
    ("block", ""): blocks.BlockView,
    ("block", "block field"): blocks.BlockField,
    ("block", "block part"): blocks.BlockPart,
    ("tensor-statistics", ""): statistics.TensorStatistics,
    ("tensor-statistics", "histogram"): statistics.Histogram,
    ("tensor-statistics", "magnitude"): statistics.MagnitudeBin,
    ("tensor-statistics", "channels"): statistics.ChannelReport,
    ("tensor-statistics", "channel"): statistics.Channel,
    ("heat-map", ""): heat.HeatMap,
    ("verify", ""): verify.VerifyReport,
    ("verify", "finding"): Finding,
    ("verify", "verdict"): verify.Verdict,
    ("scan", ""): scan.ScanReport,
    ("scan", "scanned file"): scan.FileReport,
    ("scan", "scan finding"): scan.ScanFinding,
    ("scan", "skipped part"): scan.Skipped,
    ("strip", ""): strip.StripReport,
    ("strip", "dropped part"): Dropped,
    ("transform", ""): transform.TransformReport,
    ("transform", "renamed tensor"): operations.RenamedTensor,
    ("transform", "cut tensor"): operations.ResizedTensor,
    ("transform", "changed key"): operations.KeyChange,
    ("pack-plan", ""): pack.DescribedPack,
    ("pack-plan", "file to pack"): pack.DescribedFile,
    ("pack", ""): pack.PackReport,
    ("pack", "packed file"): pack.PackedFileReport,
    ("extract-lora", ""): extraction.ExtractReport,
    ("extract-lora", "extracted matrix"): ExtractedMatrix,
    ("suggestions", ""): rename.Suggestions,
    ("suggestions", "suggestion"): rename.Suggestion,
    ("hash", ""): digests.HashReport,
    ("hash", "hashed file"): digests.FileDigest,
    ("hash", "hashed model"): digests.ModelDigest,
    ("hash", "hashed tensor"): digests.TensorDigest,
    ("prove", ""): prove_model.ProveReport,
    ("prove", "check"): prove_model.ProveCheck,
    ("verify", "signature"): signature_model.SignatureReport,
    ("sign", ""): signature_sign.SignReport,
    ("sbom", ""): sbom_report.SbomReport,
    ("lineage", ""): lineage_model.LineageReport,
    ("lineage", "lineage model"): lineage_model.LineageModel,
    ("lineage", "source"): lineage_model.LineageSource,
    ("lineage", "lineage pair"): lineage_model.LineagePair,
    ("lineage", "branch"): lineage_model.LineageBranch,
    ("lineage", "stores"): lineage_model.StoreLineage,
    ("hash-check", ""): checksum_files.CheckReport,
    ("hash-check", "compared digest"): checksum_files.Compared,
}
Tables = dict[tuple[str, str], dict[str, str]]


def tables() -> Tables:
    """(schema, part) -> key -> type, from the page."""
    out: Tables = {}
    place = ("", "")
    for line in PAGE.read_text().splitlines():
        if found := re.fullmatch(r"## weighbridge/([\w-]+)/1", line):
            place = (found[1], "")
        elif line.startswith("### "):
            place = (place[0], line[4:])
        elif found := re.fullmatch(r"\| `(\w+)` \| ([^|]+) \| .* \|", line):
            out.setdefault(place, {})[found[1]] = found[2].strip()
    return out


@pytest.mark.parametrize("place", CLASSES, ids=lambda p: "/".join(p).rstrip("/"))
def test_every_key_is_documented_and_no_other(place: tuple[str, str]) -> None:
    row = CLASSES[place]
    names = getattr(row, "__struct_fields__", None) or [f.name for f in dataclasses.fields(row)]
    assert list(tables()[place]) == list(names)


def test_every_documented_part_is_checked() -> None:
    assert set(tables()) == set(CLASSES)


KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
    "null": (type(None),),
    "any": (object,),
    "array": (list,), "array of string": (list,), "array of integer": (list,), "array of number": (list,),
}  # fmt: skip


def check(value: Any, place: tuple[str, str]) -> None:
    for key, words in tables()[place].items():
        kinds = [KINDS[word] for word in words.split(" or ")]
        assert isinstance(value[key], tuple(k for kind in kinds for k in kind)), (place, key, value[key])
        inner = words.removeprefix("array of ")
        if inner != words:
            assert all(isinstance(v, KINDS[inner]) for v in value[key]), (place, key)


def test_what_is_in_tensors_has_the_documented_types(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(m.gguf({}, {"b": ("Q8_0", (2, 32))}))
    with open_model(tmp_path / "x.gguf") as model:
        for report, name, parts in (
            (blocks.block(model, "b", 1), "block", {"fields": "block field", "parts": "block part"}),
            (statistics.describe_tensor(model, "b"), "tensor-statistics", {"magnitudes": "magnitude"}),
            (heat.heat_map(model, "rms"), "heat-map", {}),
        ):
            data = json.loads(json.dumps(plain(report)))
            check(data, (name, ""))
            for key, part in parts.items():
                for row in data[key]:
                    check(row, (name, part))
            for key, part in (
                (("histogram", "histogram"), ("channels", "channels")) if name.startswith("tensor") else ()
            ):
                check(data[key], (name, part))


def test_real_reports_have_the_documented_types(tmp_path: Path) -> None:
    folder = m.llama_folder(tmp_path / "m")
    (folder / "empty.safetensors").touch()
    keys = {"general.architecture": ("str", "llama"), "tokenizer.ggml.tokens": ("arr[str]", ["a"] * 40)}
    file = tmp_path / "x.gguf"
    file.write_bytes(m.gguf(keys, {"token_embd.weight": ("F32", (4, 8)), "b": ("Q8_0", (2, 32))}))
    for report, name, parts in (
        (identify.identify(folder), "identify", {"files": "file line"}),
        (inspect.inspect(folder), "inspect", {"files": "file", "dtypes": "dtype", "tensors": "tensor"}),
        (inspect.inspect(file), "inspect", {"tensors": "tensor", "schemes": "scheme"}),
        (anatomy.anatomy(file, at=-1 + file.stat().st_size), "anatomy", {"parts": "part", "shares": "share"}),
        (get.stats(f"{file}::b"), "tensor-statistics", {}),
        (verify.verify(folder), "verify", {"findings": "finding"}),
        (verify.verify(file), "verify", {"findings": "finding", "verdicts": "verdict"}),
    ):
        value = json.loads(json.dumps(plain(report), allow_nan=False))
        assert value["schema"] == f"weighbridge/{name}/1"
        check(value, (name, ""))
        for key, part in parts.items():
            assert value[key], (name, key)
            for one in value[key]:
                check(one, (name, part))
    check(json.loads(json.dumps(plain(inspect.inspect(file).model))), ("inspect", "model"))


def test_a_set_of_ranks_has_the_documented_types(tmp_path: Path) -> None:
    m.ranks(tmp_path)
    (tmp_path / "model-rank-1-of-2.safetensors").unlink()
    for path in (tmp_path, tmp_path / "model-rank-0-of-2.safetensors"):
        value = json.loads(json.dumps(plain(inspect.inspect(path)), allow_nan=False))
        check(value, ("inspect", ""))
        check(value["ranks"], ("inspect", "ranks"))
        assert value["ranks"]["missing"] == ["model-rank-1-of-2.safetensors"]


def test_a_real_importance_matrix_has_the_documented_types(tmp_path: Path) -> None:
    file, model = tmp_path / "m.dat", tmp_path / "m.gguf"
    file.write_bytes(m.imatrix_dat())
    needed = ("block_count", "context_length", "embedding_length", "attention.head_count", "feed_forward_length")
    keys = {"general.architecture": ("str", "llama"), **{f"llama.{key}": ("u32", 1) for key in needed},
            "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5)}  # fmt: skip
    model.write_bytes(m.gguf(keys, {"blk.0.attn_v.weight": ("F32", (4, 8)), "blk.0.attn_q.weight": ("F32", (4, 4))}))
    value = json.loads(json.dumps(plain(importance_report.inspect_imatrix(file, model=model)), allow_nan=False))
    assert value["schema"] == "weighbridge/importance/1"
    check(value, ("importance", ""))
    check(value["entries"][0], ("importance", "entry"))
    check(value["fit"], ("importance", "fit"))
    check(value["fit"]["wrong_size"][0], ("importance", "wrong size"))


def test_a_real_scan_has_the_documented_types(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pkl"
    bad.write_bytes(b"cos\nsystem\n(S'x'\ntR.")
    (tmp_path / "gone").symlink_to("nowhere")
    value = json.loads(json.dumps(plain(engine.scan(bad, tmp_path / "gone")), allow_nan=False))
    assert value["schema"] == "weighbridge/scan/1"
    check(value, ("scan", ""))
    found, missed = value["files"]
    for one, part in ((found, "scanned file"), (found["findings"][0], "scan finding"),
                      (missed["skipped"][0], "skipped part")):  # fmt: skip
        check(one, ("scan", part))


def documented(capsys: pytest.CaptureFixture[str], name: str, parts: dict[str, str], *arguments: object) -> Any:
    """What a command prints, each of its parts as documented."""
    assert main([*map(str, arguments), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == f"weighbridge/{name}/1"
    check(value, (name, ""))
    for key, part in parts.items():
        assert value[key], (name, key)
        for one in value[key]:
            check(one, (name, part))
    return value


def test_what_rename_and_slice_print_has_the_documented_types(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The little file under other names is none that llama.cpp loads.
    monkeypatch.setattr("weighbridge.conversion.gguf.loadable.check_loadable", lambda files, source, **options: [])
    keys = {
        "general.architecture": ("str", "llama"), "tokenizer.ggml.tokens": ("arr[str]", ["a"] * 40),
        "llama.expert_count": ("u32", 4), "llama.block_count": ("u32", 1), "llama.attention.head_count": ("u32", 1),
        "llama.embedding_length": ("u32", 8), "llama.feed_forward_length": ("u32", 8),
    }  # fmt: skip
    shapes = {"blk.0.ffn_gate_inp.weight": ("F32", (4, 8)), "output_norm.weight": ("F32", (8,))}
    file, target = tmp_path / "x.gguf", tmp_path / "y.gguf"
    file.write_bytes(m.gguf(keys, shapes))
    documented(capsys, "suggestions", {}, "rename", file)
    documented(capsys, "transform", {"renamed": "renamed tensor"}, "rename", file, target, "--add-prefix", "module.")
    documented(capsys, "suggestions", {"suggestions": "suggestion"}, "rename", target)
    parts = {"cut": "cut tensor", "changed": "changed key"}
    documented(capsys, "transform", parts, "slice", file, target, "--experts", "0-1", "--overwrite")


def test_what_extract_lora_prints_has_the_documented_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tuned = make_folder(tmp_path / "base"), make_folder(tmp_path / "tuned", tensors=llama_tensors(1))
    parts = {"matrices": "extracted matrix"}
    documented(capsys, "extract-lora", parts, "extract-lora", base, tuned, tmp_path / "adapter", "--rank", "3")


def test_what_pack_prints_has_the_documented_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "m")
    documented(capsys, "pack", {"files": "packed file"}, "pack", folder, tmp_path / "p")
    documented(capsys, "pack-plan", {"files": "file to pack"}, "pack", folder, tmp_path / "q", "--dry-run")


def test_what_strip_and_hash_print_has_the_documented_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    source, target, manifest = tmp_path / "x.pt", tmp_path / "x.safetensors", tmp_path / "manifest.json"
    torch.save({"model": {"a": torch.ones(2, 3)}, "ema": {"a": torch.ones(2, 3)}}, source)
    documented(capsys, "strip", {"dropped": "dropped part"}, "strip", source, target)
    documented(capsys, "hash", {"files": "hashed file"}, "hash", source, target)
    asked = ("hash", target, "--tensors")
    value = documented(capsys, "hash", {"models": "hashed model"}, *asked)
    for one in value["models"][0]["tensors"]:
        check(one, ("hash", "hashed tensor"))
    assert main([*map(str, asked), "--manifest", str(manifest)]) == 0
    documented(capsys, "hash-check", {"results": "compared digest"}, "hash", "--check", manifest)
