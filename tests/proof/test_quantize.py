"""`wb quantize` writes llama-quantize's files: the same command line to both, whole files compared.

llama-quantize is the real one (tests/oracles/llama_quantize.py). benchmarks/compare_quantize.py does the same with one
that was built as usual, with models of any size, and for the types that take it too long here; their blocks are
compared in tests/kernels, and which tensor gets them in tests/conversion/test_mixtures.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers._gguf import STR, File, Item, Tensor
from tests.fit.hollow import decoded
from tests.models.projector_cases import referenced as projectors
from tests.oracles import llama_quantize, models, quantize_cases, reference_converter
from tests.oracles.case import Case as ModelCase
from tests.oracles.quantize_cases import MODELS, Case, difference, files_of, ours

import weighbridge
from weighbridge.base.dtypes import BY_NAME, F32, Kind
from weighbridge.base.errors import RefusedError
from weighbridge.base.spec import Shape, Spec
from weighbridge.cli.main import main
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.quantize import ftypes, inputs, type_hints
from weighbridge.conversion.quantize import keys as keys_
from weighbridge.conversion.quantize import plan as planning
from weighbridge.conversion.quantize import prune_layers as layers
from weighbridge.io.source import BytesSource
from weighbridge.tensors import kernels

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("quantize")]

CASES = {case.name: case for case in quantize_cases.cases(quantize_cases.LONG)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return quantize_cases.prepare(tmp_path_factory.mktemp("quantize") / "sources")


@pytest.fixture(scope="module")
def theirs(sources: Mapping[str, Path]) -> Mapping[str, list[bytes]]:
    """Every case by llama-quantize, in one process."""
    folder = sources["dense"].parents[1] / "theirs"
    folder.mkdir()
    targets = {name: folder / f"{name}.gguf" for name in CASES}
    jobs = [command(case, sources, targets[name]) for name, case in CASES.items()]
    codes = dict(zip(CASES, llama_quantize.quantize_all(jobs), strict=True))
    assert {name: code for name, code in codes.items() if code} == {}
    return {name: files_of(target) for name, target in targets.items()}


def command(case: Case, sources: Mapping[str, Path], target: Path) -> list[str]:
    return case.command(sources["dense"].parent, sources[case.model], target)


def unwritten(file: bytes) -> list[str]:
    """The types in a file that this version has no encoder for."""
    dtypes = {entry.dtype for entry in gguf.parse(BytesSource(file))}
    return [d.name for d in dtypes if d.kind is Kind.BLOCK and not kernels.encodes(d)]


def differences(name: str, sources: Mapping[str, Path], theirs: Mapping[str, list[bytes]], folder: Path) -> str:
    code = ours(command(CASES[name], sources, folder / f"{name}.gguf"))
    if code == 2 and (types := unwritten(theirs[name][0])):
        pytest.skip(f"this version doesn't write {', '.join(types)}")
    assert code == 0
    found = files_of(folder / f"{name}.gguf")
    assert len(found) == len(theirs[name])
    return "; ".join(filter(None, map(difference, found, theirs[name])))


@pytest.mark.costly
def test_every_type_is_written_or_named(sources: Mapping[str, Path]) -> None:
    """A plan names each tensor whose type this version can't write, and only those."""
    matrix = sources["dense"].parent / "imatrix-dense.gguf"
    for ftype in quantize_cases.FTYPES:
        plan = weighbridge.plan_quantize(sources["dense"], "out.gguf", ftype, imatrix=matrix)
        unwritten = {r.name for r in plan.rows if r.source != r.target and not kernels.encodes(BY_NAME[r.target])}
        assert {r.tensor for r in plan.refusals if r.rule == "unsupported"} == unwritten


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_files_are_equal(
    name: str, sources: Mapping[str, Path], theirs: Mapping[str, list[bytes]], tmp_path: Path
) -> None:
    assert differences(name, sources, theirs, tmp_path) == ""


# -- what is refused ---------------------------------------------------------------------------------------------------

# name -> (source, arguments, type, words of our error). llama-quantize ends with an error too, or aborts.
REFUSED: Mapping[str, tuple[str, tuple[str, ...], str, str]] = {
    "no imatrix": ("dense", (), "IQ2_XS", "needs an importance matrix"),
    "no imatrix, a K type": ("dense", (), "Q2_K_S", "needs an importance matrix"),
    "no entry": ("dense", ("--imatrix", "FOLDER/partial.gguf"), "IQ2_XS", "blk.3.attn_q.weight"),
    "no entry for the embedding": ("dense", ("--pure", "--imatrix", "FOLDER/imatrix-dense.gguf"), "IQ2_XS", "IQ2_XS"),
    "another size": ("dense", ("--imatrix", "FOLDER/misshapen.gguf"), "Q4_K_M", "512 values for it, not 256"),
    "quantized": ("quantized", (), "Q4_K_M", "--allow-requantize"),
    "rows of no block": ("odd", (), "Q1_0", "has no fallback"),
    "include and exclude": ("dense", ("--include-weights", "a", "--exclude-weights", "b"), "Q4_0", "together"),
    "no pattern": ("dense", ("--tensor-type", "attn_q"), "Q4_0", "PATTERN=TYPE"),
    "no type": ("dense", ("--tensor-type", "attn_q=q9_z"), "Q4_0", "can't be quantized to"),
    "no override": ("dense", ("--override-kv", "a.b"), "Q4_0", "isn't of the form KEY=TYPE:VALUE"),
    "no kind of override": ("dense", ("--override-kv", "a.b=number:4"), "Q4_0", "isn't of the form KEY=TYPE:VALUE"),
    "no bool": ("dense", ("--override-kv", "a.b=bool:maybe"), "Q4_0", "neither true nor false"),
    "no layers": ("dense", ("--prune-layers", "a,b"), "Q4_0", "not a list of layers"),
    "no output type": ("dense", ("--output-tensor-type", "nothing"), "Q4_0", "can't be quantized to"),
    "no file": ("dense", ("--imatrix", "FOLDER/absent.gguf"), "Q4_0", "absent.gguf"),
    "no imatrix file": ("dense", ("--imatrix", "FOLDER/dense.gguf"), "Q4_0", "dense.gguf"),
    "unknown type": ("dense", (), "Q4_K_X", "did you mean Q4_K_S, Q4_K_M"),
}


@pytest.fixture(scope="module")
def spoiled(sources: Mapping[str, Path]) -> Path:
    """The sources' folder, with importance matrices that don't fit."""
    folder, model = sources["dense"].parent, MODELS["dense"]
    quantize_cases.gguf_imatrix(folder / "partial.gguf", model, lambda name: name == "blk.3.attn_q.weight")
    wide = model._replace(layers={**model.layers, "attn_v": (8, 512)})
    quantize_cases.gguf_imatrix(folder / "misshapen.gguf", wide)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(
    name: str, spoiled: Path, sources: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, arguments, ftype, words = REFUSED[name]
    case = Case(name, model, arguments, ftype)
    assert llama_quantize.quantize(*command(case, sources, tmp_path / "theirs.gguf"))[0] != 0
    assert main(["quantize", *command(case, sources, tmp_path / "ours.gguf")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("ours*")) == []


# What llama-quantize does without a word, and we don't.
@pytest.mark.parametrize(
    ("arguments", "ftype", "words"),
    [
        (("--imatrix", "FOLDER/imatrix-experts.gguf", "--include-weights", "exps"), "Q4_0", "matches a tensor"),
        (("--prune-layers", "9"), "Q4_0", "the model has no layer 9"),
        (("--prune-layers", "0,1,2,3,4,5,6,7"), "Q4_0", "no layer would be left"),
        (("--override-kv", "a.b=int:-1"), "Q4_0", "not a u32"),
        (("--override-kv", "a.b=int:one"), "Q4_0", "not a number"),
        ((), "2_K", "no file type '2_K'"),
        (("--keep-split",), "Q9", "no file type"),
    ],
)
def test_what_is_refused_here_alone(
    arguments: tuple[str, ...], ftype: str, words: str, sources: Mapping[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    case = Case("", "dense", arguments, ftype)
    assert main(["quantize", *command(case, sources, tmp_path / "out.gguf")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("IQ4_KS", "ik_llama.cpp"), ("q4_0_r4", "ik_llama.cpp"), ("Q4_0_8_8", "November 2024"), ("UD-Q4_K_XL", "unsloth"),
     ("Q5_K_L", "bartowski"), ("Q8_K", "arithmetic"), ("NVFP4", "converter"), ("mxfp4", "MXFP4_MOE"), ("Q4_2", "2023")],
)  # fmt: skip
def test_types_of_others_are_named(
    name: str, words: str, sources: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(sources["dense"]), "out.gguf", name]) == 2
    assert words in capsys.readouterr().err


def test_no_name_of_ours_is_another_s() -> None:
    names = [n for row in ftypes.table().ftypes.values() if row.writable for n in (row.name, *row.aliases)]
    assert [name for name in names if type_hints.origin(name)] == []


# -- mutation: a fault in a key, an order, an option shows -----------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _wrap(module: Any, name: str, change: Callable[[Any], Any]) -> Patch:
    """`module.name` with its result changed."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: change(original(*a, **k)))

    return patch


def _put(module: Any, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


def _without(key: str) -> Callable[[dict[str, KV]], dict[str, KV]]:
    return lambda keys: {k: kv for k, kv in keys.items() if k != key}


def _retyped(kind: str, key: str) -> Callable[[dict[str, KV]], dict[str, KV]]:
    return lambda keys: {k: KV(kind, kv.value) if k == key else kv for k, kv in keys.items()}


def _reversed(keys: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(keys.items()))


K = keys_
# fault -> (what is patched, the case that sees it)
FAULTS: Mapping[str, tuple[Patch, str]] = {
    "version 1": (_put(K, "_VERSION", KV("u32", 1)), "Q4_0-dense"),
    "version of another type": (_put(K, "_VERSION", KV("i32", 2)), "Q4_0-dense"),
    "split keys kept": (_put(meta, "_FILE_KEYS", ("split.no",)), "keyed"),
    "a key that is set stays in its place": (_put(K, "_set", lambda keys, new: {**keys, **new}), "keyed"),
    "imatrix keys reversed": (_wrap(K, "imatrix_keys", _reversed), "keyed"),
    "no imatrix file": (_wrap(K, "imatrix_keys", _without("quantize.imatrix.file")), "keyed"),
    "no imatrix dataset": (_wrap(K, "imatrix_keys", _without("quantize.imatrix.dataset")), "keyed"),
    "no imatrix entries": (_wrap(K, "imatrix_keys", _without("quantize.imatrix.entries_count")), "keyed"),
    "no imatrix chunks": (_wrap(K, "imatrix_keys", _without("quantize.imatrix.chunks_count")), "keyed"),
    "chunks of another type": (_wrap(K, "imatrix_keys", _retyped("i32", "quantize.imatrix.chunks_count")), "keyed"),
    "texts not cut": (_put(K, "_TEXT", 1 << 20), "keyed"),
    "texts cut one short": (_put(K, "_TEXT", 126), "keyed"),
    "keys of a wish that chose nothing": (
        lambda m: m.setattr(inputs, "_load_imatrix", lambda options, made: None), "Q4_0-dense-imatrix",
    ),
    "overrides before the version": (_wrap(K, "parse_overrides", _reversed), "override"),
    "an int is i32": (_put(K, "_KINDS", {**K._KINDS, "int": "i32"}), "override"),
    "a float is f64": (_put(K, "_KINDS", {**K._KINDS, "float": "f64"}), "override"),
    "split.count of another type": (_wrap(K, "shard_keys", _retyped("u32", "split.count")), "shards-kept"),
    "split keys reversed": (_wrap(K, "shard_keys", _reversed), "shards-kept"),
    "all keys in every shard": (
        lambda m: m.setattr(K, "shard_keys", lambda keys, shard, count, n: dict(keys)), "shards-kept",
    ),
    "layers not counted": (_wrap(layers, "prune", lambda found: found._replace(left=found.before)), "prune"),
    "layers not moved up": (
        _wrap(layers, "prune", lambda found: found._replace(names={n: n for n in found.names})), "prune",
    ),
    "order of the file": (lambda m: m.setattr(ftypes, "ordered", list), "Q4_0-dense"),
    "leading dimensions kept": (lambda m: m.setattr(inputs, "without_leading_ones", lambda shape: shape), "Q4_0-odd"),
    "weights forgotten": (
        lambda m: m.setattr(inputs.QuantizeInputs, "weights", lambda self, name: None), "Q4_0-dense-imatrix",
    ),
    "a guess without its mark": (_put(inputs, "GUESSED", 0), "copy-guess"),
    "a pattern's order": (
        _wrap(planning, "type_options", lambda o: ftypes.TypeOptions(tensor_types=o.tensor_types[1:])),
        "tensor-type",
    ),
}  # fmt: skip


@pytest.mark.mutation
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(
    fault: str, sources: Mapping[str, Path], theirs: Mapping[str, list[bytes]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    patch, case = FAULTS[fault]
    assert differences(case, sources, theirs, tmp_path / "right") == ""
    patch(monkeypatch)
    # Some make a file that llama.cpp would refuse, which is refused here too; what counts is how the bytes differ.
    monkeypatch.setattr("weighbridge.conversion.quantize.plan.check_loadable", lambda files, source: [])
    assert differences(case, sources, theirs, tmp_path / "wrong") != ""


@pytest.mark.mutation
def test_every_option_changes_the_file(sources: Mapping[str, Path], theirs: Mapping[str, list[bytes]]) -> None:
    """No option is in the cases that could be ignored unseen."""
    plain = {(case.ftype.upper(), case.model): case.name for case in CASES.values() if not case.arguments}
    for case in CASES.values():
        beside = plain.get((case.ftype.upper(), case.model))
        if case.arguments and beside and case.name != "exclude-all":
            assert theirs[case.name] != theirs[beside], case.name


# -- the plan --------------------------------------------------------------------------------------------------------


def test_dry_run_says_what_would_be_written(
    sources: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["quantize", str(sources["dense"]), str(tmp_path / "out.gguf"), "q4_k_m"]
    assert main([*words, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weighbridge.cli.views.quantize.slow_version", lambda: "pure Python")
        assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.replace("kernels  pure Python\n", "", 1) == shown
    assert list(tmp_path.iterdir()) == []
    assert main(words) == 0
    assert plan["bytes"] == (tmp_path / "out.gguf").stat().st_size
    assert plan["schema"] == "weighbridge/quantize/1"
    chosen = {row["name"]: row["target"] for row in plan["tensors"]}
    assert chosen["output.weight"] == "Q6_K"
    assert chosen["blk.0.attn_v.weight"] == "Q6_K"
    assert "blk.{0-7}.attn_q.weight" in shown
    assert f"{plan['bits_per_weight']:.2f} bits per weight" in shown


def test_dry_run_tells_every_refusal(sources: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(sources["dense"]), "IQ2_XS", "--dry-run"]) == 1
    said = capsys.readouterr()
    assert "IQ2_XS needs an importance matrix" in said.err
    assert "ggml-model-IQ2_XS.gguf" in said.out


def test_the_target_is_named_as_there(sources: Mapping[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(sources["dense"].read_bytes())
    assert main(["quantize", str(source), "q3_k"]) == 0
    assert main(["quantize", str(source), "7", "2"]) == 0  # a type by number, then threads
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "ggml-model-Q3_K_M.gguf",
        "ggml-model-Q8_0.gguf",
        "model.gguf",
    ]


# -- from a folder, in one pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "ftype"), [("bfloat16", "Q4_K_M"), ("float16", "Q5_0"), ("float32", "Q3_K_S")])
def test_a_folder_gives_what_converter_and_tool_give(dtype: str, ftype: str, tmp_path: Path) -> None:
    options = models._DECODER | models._theta(1e4) | {"hidden_size": 256, "intermediate_size": 288}
    case = ModelCase("folder", "LlamaConfig", "spm", options)
    folder = models.build(case, tmp_path / "folder", dtype=dtype)
    outtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[dtype]
    between = reference_converter.convert(folder, tmp_path / "between.gguf", outtype, pre=case.pre)
    assert llama_quantize.quantize(str(between), str(tmp_path / "theirs.gguf"), ftype)[0] == 0
    assert ours([str(folder), str(tmp_path / "ours.gguf"), ftype]) == 0
    assert difference((tmp_path / "ours.gguf").read_bytes(), (tmp_path / "theirs.gguf").read_bytes()) == ""


@pytest.mark.parametrize("ftype", ["MXFP4_MOE", "Q8_0"])
def test_experts_that_were_published_in_mxfp4(ftype: str, tmp_path: Path) -> None:
    """gpt-oss: codes of the wanted type stay as they are; others are refused, as by llama-quantize."""
    case = models.CASES["gpt-oss-mxfp4"]
    folder = models.build(case, tmp_path / "folder", dtype="bfloat16")
    between = reference_converter.convert(folder, tmp_path / "between.gguf", "bf16", pre=case.pre)
    code = llama_quantize.quantize(str(between), str(tmp_path / "theirs.gguf"), ftype)[0]
    assert (ours([str(folder), str(tmp_path / "ours.gguf"), ftype]) == 0) == (code == 0) == (ftype == "MXFP4_MOE")
    if code == 0:
        assert difference((tmp_path / "ours.gguf").read_bytes(), (tmp_path / "theirs.gguf").read_bytes()) == ""


# -- where llama-quantize writes what can't be loaded ------------------------------------------------------------------


def whole(path: Path) -> bool:
    """Whether a file is what the specification wants, its data in its place."""
    try:
        index = gguf.parse(BytesSource(path.read_bytes()))
    except gguf.GGUFError:
        return False
    return not [f for f in index.findings if f.severity == "error"]


def test_another_alignment_is_kept(sources: Mapping[str, Path], tmp_path: Path) -> None:
    source, found, theirs = (tmp_path / f"{name}.gguf" for name in ("source", "ours", "theirs"))
    weighbridge.convert(sources["dense"], source, align=4096)
    assert llama_quantize.quantize(str(source), str(theirs), "Q4_0")[0] == 0
    assert not whole(theirs)
    assert ours([str(source), str(found), "Q4_0"]) == 0
    assert whole(found)
    assert ours([str(sources["dense"]), str(tmp_path / "usual.gguf"), "Q4_0"]) == 0
    with weighbridge.open(found) as a, weighbridge.open(tmp_path / "usual.gguf") as b:
        assert {n: t.raw() for n, t in a.items()} == {n: t.raw() for n, t in b.items()}
        assert a.metadata["general.alignment"] == 4096


def test_lists_of_layers_lose_those_that_go(tmp_path: Path) -> None:
    model = MODELS["dense"]._replace(keys={"llama.per_layer": list(range(10, 18)), "other.per_layer": list(range(8))})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quantize_cases, "MODELS", {"lists": model})
        source = quantize_cases.make("lists", tmp_path)
    assert ours(["--prune-layers", "2,5", str(source), str(tmp_path / "out.gguf"), "Q4_0"]) == 0
    with weighbridge.open(tmp_path / "out.gguf") as found:
        assert list(found.metadata["llama.per_layer"]) == [10, 11, 13, 14, 16, 17]
        assert len(found.metadata["other.per_layer"]) == 8
        assert found.metadata["llama.block_count"] == 6


@pytest.mark.parametrize("shard", [0, 2])
def test_a_source_that_ends_too_early_gives_nothing(
    shard: int, sources: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(sources["shards"].parent.glob("shards-*.gguf"))
    for path in files:
        (tmp_path / path.name).write_bytes(path.read_bytes()[: -200 if path == files[shard] else None])
    assert main(["quantize", str(tmp_path / files[0].name), str(tmp_path / "out.gguf"), "Q4_0"]) == 2
    assert files[shard].name in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 3


def test_an_interrupt_leaves_nothing(
    sources: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.gguf").write_bytes(b"what was there")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "encode_finite", interrupt)
    words = ["quantize", "--overwrite", str(sources["dense"]), str(tmp_path / "out.gguf"), "Q4_0"]
    assert main(words) == 130
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"what was there"]


# Ollama's name of gpt-oss, a name of nobody's; and parts of models, whose types are llama-quantize's.
ODD_MODELS: Mapping[str, tuple[tuple[str, Shape], ...]] = {
    "gptoss": (("blk.0.attn_q.weight", (256, 256)),),
    "nonsense": (("blk.0.attn_q.weight", (256, 256)),),
    "clip": (("v.blk.0.attn_q.weight", (256, 256)), ("mm.0.weight", (256, 256))),
    "wavtokenizer-dec": (
        ("token_embd.weight", (8, 64)), ("conv1d.weight", (256, 64, 7)), ("posnet.0.conv1.weight", (256, 256, 3)),
        ("posnet.2.attn_v.weight", (256, 256, 1)), ("convnext.0.dw.weight", (256, 1, 7)),
        ("convnext.0.pw1.weight", (512, 256)), ("output.weight", (1282, 256)),
    ),
}  # fmt: skip
_SPEECH = {
    **dict.fromkeys(("attention.layer_norm_epsilon", "attention.group_norm_epsilon"), KV("f32", 1e-6)),
    **dict.fromkeys(("features_length", "posnet.embedding_length", "convnext.embedding_length"), KV("u32", 256)),
    **dict.fromkeys(("attention.group_norm_groups", "posnet.block_count", "convnext.block_count"), KV("u32", 3)),
}


@pytest.mark.parametrize("architecture", ODD_MODELS)
def test_an_architecture_is_refused_where_llama_quantize_refuses_it(architecture: str, tmp_path: Path) -> None:
    source, theirs, mine = (tmp_path / f"{name}.gguf" for name in ("source", "theirs", "mine"))
    slots = [(name, Spec(shape, F32)) for name, shape in ODD_MODELS[architecture]]
    sizes = {"block_count": 3, "context_length": 64, "embedding_length": 64, "attention.head_count": 1}
    keys = {f"{architecture}.{name}": KV("u32", size) for name, size in sizes.items()}
    if architecture == "wavtokenizer-dec":
        keys |= {f"{architecture}.{name}": value for name, value in _SPEECH.items()}
    header = gguf.header_bytes(slots, {"general.architecture": KV("str", architecture), **keys})
    elements = sum(spec.elements for _, spec in slots)
    source.write_bytes(header + np.random.default_rng(5).standard_normal(elements, np.float32).tobytes())
    code, said = llama_quantize.quantize(str(source), str(theirs), "Q4_K_M", "1")
    if code:
        assert "unknown model architecture" in said
        with pytest.raises(RefusedError, match=f"{architecture}.*llama.cpp doesn't know"):
            weighbridge.plan_quantize(source, mine, "Q4_K_M")
        return
    weighbridge.quantize(source, mine, "Q4_K_M")
    assert mine.read_bytes() == theirs.read_bytes()


#: llama-quantize aborts at their convolutions (llama-quant.cpp:1365, GGML_ASSERT), and at dots3-note's.
WITH_CONFORMER = (
    "gemma4-audio", "embedding-gemma2-audio", "gemma3n", "lfm2-audio", "nemotron-omni", "d1-omni", "dots3-note",
)  # fmt: skip
FTYPES_OF_TOWERS = ("Q8_0", "Q4_K_S", "Q5_0", "Q5_K_M", "Q3_K_L", "Q2_K", "IQ4_XS", "F16")


@pytest.mark.parametrize(
    ("projector", "ftype"),
    [
        *product(("gemma3", "qwen2.5-vl", "qwen3-vl", "qwen2-audio"), FTYPES_OF_TOWERS),
        *((name, "Q4_K_M") for name in projectors()),
    ],
)
def test_an_mmproj_file_is_quantized_as_by_llama_quantize(projector: str, ftype: str, tmp_path: Path) -> None:
    """Names, keys and types of the reference converter, with rows of whole blocks of 256. No key has the sizes under
    the architecture's own name: llama-quantize reads none."""
    source, theirs, mine = (tmp_path / f"{name}.gguf" for name in ("source", "theirs", "mine"))
    recorded = projectors()[projector]["reference"]["f16"]
    keys = {key: KV(kind, decoded(kind, value)) for key, kind, value in recorded["keys"]}
    slots, data = [], b""
    rng = np.random.default_rng(7)
    for name, dtype, shape, _ in recorded["tensors"]:
        wide = (*shape[:-1], shape[-1] * 4) if len(shape) == 2 else tuple(shape)
        slots.append((name, Spec(wide, BY_NAME[dtype])))
        numbers = rng.standard_normal(wide).astype(np.float16 if dtype == "F16" else np.float32).tobytes()
        data += numbers + bytes(-len(numbers) % 32)
    source.write_bytes(gguf.header_bytes(slots, keys) + data)
    # llama.cpp can't compute with the file that llama-quantize writes without this option
    kept = ["--tensor-type", "mm.input_projection=f16"] if projector in ("gemma3", "gemma3-tokens") else []
    code = llama_quantize.quantize(*kept, str(source), str(theirs), ftype, "1")[0]
    weighbridge.quantize(source, mine, ftype)
    # rules on the number of heads, of which llama.cpp has read none; a tensor whose size it computes wrongly
    if ftype in ("Q2_K", "IQ4_XS") or projector in WITH_CONFORMER:
        assert code < 0
        assert weighbridge.verify(mine)
        return
    assert code == 0
    assert difference(mine.read_bytes(), theirs.read_bytes()) == ""


def test_a_big_endian_file_is_refused_as_llama_quantize_refuses_it(tmp_path: Path) -> None:
    source, theirs, mine = (tmp_path / f"{name}.gguf" for name in ("source", "theirs", "mine"))
    keys: list[tuple[str | bytes, Item]] = [("general.architecture", Item(STR, "bert"))]
    source.write_bytes(File(order=">", keys=keys, tensors=[Tensor("blk.0.attn_q.weight", [256, 256])]).bytes())
    assert llama_quantize.quantize(str(source), str(theirs), "Q4_K_M", "1")[0] != 0
    with pytest.raises(RefusedError, match="big-endian") as caught:
        weighbridge.plan_quantize(source, mine, "Q4_K_M")
    assert "wb convert" in str(caught.value.hint)


@pytest.mark.parametrize("key", ["context_length", "block_count", "attention.layer_norm_rms_epsilon"])
def test_a_model_without_a_key_of_its_architecture_is_refused_as_there(
    key: str, sources: Mapping[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "source.gguf"
    name = f"llama.{key}".encode()
    source.write_bytes(sources["dense"].read_bytes().replace(name, name[:-1] + b"_"))
    assert llama_quantize.quantize(str(source), str(tmp_path / "theirs.gguf"), "Q8_0", "1")[0] != 0
    with pytest.raises(RefusedError, match=f"lacks llama.{key}"):
        weighbridge.plan_quantize(source, tmp_path / "mine.gguf", "Q8_0")
