"""Whether llama.cpp would load a GGUF: our verdict against its own loader, over every family's model with its keys,
tensors and shapes changed one at a time, and over a table of files as they are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from tests.containers._gguf import STR, U32, File, Item, Tensor
from tests.containers._gguf_models import VOCAB, Metadata, Tensors, model, render, tensors
from tests.fit.hollow import decoded
from tests.models.family_judges import golden
from tests.models.projector_cases import expected
from tests.models.projector_cases import referenced as projectors
from tests.models.record_families import writing
from tests.oracles.llama_loads import Judge

import weighbridge as wb
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Severity
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.io.source import BytesSource
from weighbridge.models.llamacpp import rules as module
from weighbridge.models.llamacpp import table
from weighbridge.models.llamacpp.projectors import table as projector_table
from weighbridge.models.llamacpp.rules import COMPANION, RULES, findings
from weighbridge.page.verdict import Level
from weighbridge.page.verdict import verdict as page_verdict

F32, Q4_0 = BY_NAME["F32"], BY_NAME["Q4_0"]
Change = Callable[[Metadata, Tensors], None]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    pytest.importorskip(
        "xllamacpp", reason="NOTHING HERE WAS COMPARED WITH LLAMA.CPP: install requirements/oracles.txt"
    )
    opened = Judge()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def mmproj_judge() -> Iterator[Judge]:
    opened = Judge("mmproj")
    yield opened
    opened.close()


def verdict(path: Path) -> bool | None:
    return wb.verify(path).verdicts[0].accepts


# ---------------------------------------------------------------- families

KEPT = 8  # faults of a family's model that are tried
TYPED = ("bert", "nomic-bert", "nomic-bert-moe")  # whose number of token types stands among the tokenizer's keys


def family_model(name: str) -> tuple[Metadata, Tensors]:
    """What the reference converter makes of a family's small model, with a vocabulary that is only counted."""
    recorded = golden()[name]
    keys = {key: KV(kind, decoded(kind, value)) for key, kind, value in recorded["keys"]}
    slots = [(tensor, Spec(tuple(shape), BY_NAME[dtype])) for tensor, dtype, shape, _ in recorded["gguf"]]
    architecture = keys["general.architecture"].value
    keys["tokenizer.ggml.model"] = KV("str", "none")
    embedding = dict(slots).get("token_embd.weight")  # a draft may have its target's
    tokens = writing(recorded["config"])["vocab_size"] if embedding is None else embedding.shape[0]
    keys[f"{architecture}.vocab_size"] = KV("u32", tokens)
    types = dict(slots).get("token_types.weight")
    if architecture in TYPED or (types and f"{architecture}.decision.type" in keys):
        keys["tokenizer.ggml.token_type_count"] = KV("u32", types.shape[0] if types else 1)
    return keys, slots


def faults(keys: Metadata, slots: Tensors) -> dict[str, tuple[Metadata, Tensors]]:
    """Each key and each tensor of a first layer left out, each shape another, a tensor too many."""
    own = f"{keys['general.architecture'].value}."
    out = {f"without {k}": ({a: b for a, b in keys.items() if a != k}, slots) for k in keys if k.startswith(own)}
    for i, (tensor, spec) in enumerate(slots):
        if "blk." not in tensor or "blk.0." in tensor:
            out[f"without {tensor}"] = keys, [*slots[:i], *slots[i + 1 :]]
            larger = Spec((spec.shape[0] + 32, *spec.shape[1:]), spec.dtype)
            out[f"larger {tensor}"] = keys, [*slots[:i], (tensor, larger), *slots[i + 1 :]]
    return {**out, "one too many": (keys, [*slots, ("blk.0.surplus.weight", Spec((32,), F32))])}


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name, recorded in golden().items() if "keys" in recorded])
def test_every_family_is_judged_as_llama_cpp_does(name: str, judge: Judge, tmp_path: Path) -> None:
    keys, slots = family_model(name)
    some = sorted(faults(keys, slots).items(), key=lambda fault: crc32(f"{name} {fault[0]}".encode()))[:KEPT]
    path, wrong = tmp_path / "m.gguf", []
    for fault, (changed, tensors_) in {"no fault": (keys, slots), **dict(some)}.items():
        path.write_bytes(render(gguf.layout(tensors_, changed), lambda name, size: bytes(size)))
        ours, refusal = verdict(path), judge.refusal(path)
        if ours is not None and ours != (refusal is None):
            wrong.append((fault, ours, refusal))
    assert wrong == []


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name, recorded in golden().items() if "keys" in recorded])
def test_the_length_of_a_head_may_follow_from_the_number_of_heads(name: str, judge: Judge, tmp_path: Path) -> None:
    keys, slots = family_model(name)
    path, start = tmp_path / "m.gguf", f"{keys['general.architecture'].value}.attention."
    for missing in ({"key_length"}, {"value_length"}, {"key_length", "value_length"}):
        left = {key: value for key, value in keys.items() if key.removeprefix(start) not in missing}
        if len(left) + len(missing) == len(keys):
            path.write_bytes(render(gguf.layout(slots, left), lambda name, size: bytes(size)))
            ours, refusal = verdict(path), judge.refusal(path)
            assert ours in (None, refusal is None), (missing, refusal)


@pytest.mark.oracle
@pytest.mark.parametrize("dense", [True, False])
def test_a_size_is_needed_only_by_its_layers(dense: bool, judge: Judge, tmp_path: Path) -> None:
    """A Cohere2Moe without dense layers needs no `feed_forward_length`."""
    keys, slots = family_model("cohere2moe")
    del keys["cohere2moe.feed_forward_length"]
    if not dense:
        keys["cohere2moe.leading_dense_block_count"] = KV("u32", 0)
        own = [(n.replace("blk.1.", "blk.0."), s) for n, s in slots if n.startswith("blk.1.ffn")]
        slots = [*own, *((n, s) for n, s in slots if not n.startswith("blk.0.ffn"))]
    path = tmp_path / "m.gguf"
    path.write_bytes(render(gguf.layout(slots, keys), lambda name, size: bytes(size)))
    assert verdict(path) is not dense
    assert (judge.refusal(path) is None) is not dense


# ---------------------------------------------------------------- files as they are met


class Met(NamedTuple):
    """A change of a small Llama, the rules that it breaks, and the verdict."""

    name: str
    change: Change
    rules: set[str]
    loads: bool | None = False
    whole: bool = True  # nothing else is wrong


def put(**keys: tuple[str, Any]) -> Change:
    """Keys by their names, where `__` stands for a dot."""
    return lambda metadata, _: metadata.update({k.replace("__", "."): KV(*v) for k, v in keys.items()})


def drop(*names: str) -> Change:
    """Without keys of these names, and without tensors of these names."""

    def change(keys: Metadata, slots: Tensors) -> None:
        for name in names:
            keys.pop(name, None)
        slots[:] = [slot for slot in slots if slot[0] not in names]

    return change


def renamed(architecture: str) -> Change:
    """Another architecture, with the keys renamed after it."""

    def change(keys: Metadata, _: Tensors) -> None:
        renamed = {k.replace("llama.", f"{architecture}.", 1): v for k, v in keys.items()}
        keys.clear()
        keys.update({**renamed, "general.architecture": KV("str", architecture)})

    return change


def both(*changes: Change) -> Change:
    def change(keys: Metadata, slots: Tensors) -> None:
        for one in changes:
            one(keys, slots)

    return change


def experts(count: int, used: int, **more: int) -> Change:
    """A Mixtral of this many experts."""

    def change(keys: Metadata, slots: Tensors) -> None:
        numbers = {"expert_count": count, "expert_used_count": used, **more}
        keys.update({f"llama.{k}": KV("u32", v) for k, v in numbers.items()})
        dense = {f"blk.0.ffn_{part}.weight": part for part in ("gate", "up", "down")}
        apart = [(f"blk.0.ffn_{dense[n]}_exps.weight", Spec((count, *s.shape), F32)) for n, s in slots if n in dense]
        slots[:] = [slot for slot in slots if slot[0] not in dense]
        slots += [*apart, ("blk.0.ffn_gate_inp.weight", Spec((count, 32), F32))]

    return change


def mixtral_of_2023(keys: Metadata, slots: Tensors) -> None:
    """Its experts each a tensor of its own."""
    experts(2, 1)(keys, slots)
    single = [(n, s) for n, s in slots if "_exps" in n]
    slots[:] = [slot for slot in slots if slot not in single]
    slots += [(n.replace("_exps", f".{e}"), Spec(s.shape[1:], F32)) for n, s in single for e in range(2)]


def tokens_called(*names: str) -> Change:
    """The first tokens have these names."""

    def change(keys: Metadata, _: Tensors) -> None:
        tokens = keys["tokenizer.ggml.tokens"].value
        others = [t for t in tokens if t not in names]
        keys["tokenizer.ggml.tokens"] = KV("arr[str]", [*names, *others][: len(tokens)])

    return change


def blocks(keys: Metadata, slots: Tensors) -> None:
    slots[:] = tensors(Q4_0)


def widened(name: str) -> Change:
    def change(keys: Metadata, slots: Tensors) -> None:
        slots[:] = [(n, Spec((s.shape[0] + 1, *s.shape[1:]), s.dtype) if n == name else s) for n, s in slots]

    return change


def projector(name: str) -> tuple[Metadata, Tensors]:
    """What the reference converter makes of the towers of a small model."""
    recorded = projectors()[name]["reference"]["f16"]
    tensors = expected(projectors()[name], "f16")
    slots = [(tensor, Spec(tuple(shape), BY_NAME[dtype])) for tensor, dtype, shape, _ in tensors]
    if name in ("pixtral", "mistral3"):  # which the reference leaves out
        slots.append(("v.token_embd.img_break", Spec((64,), BY_NAME["F32"])))
    keys = {key: KV(kind, decoded(kind, value)) for key, kind, value in recorded["keys"]}
    kinds = {keys[key].value for key in keys if key.endswith("projector_type")}
    return of_512(keys, slots) if kinds & {"lfm2a", "d1omni_a"} else (keys, slots)


def of_512(keys: Metadata, slots: Tensors) -> tuple[Metadata, Tensors]:
    """One layer of a conformer, of the only width that llama.cpp's graph has: eight times the recorded one. So are the
    other matrices, of which a tower that sees keeps its blocks' own."""
    sizes = {64: 512, 128: 1024, 16: 128}
    wide = [
        (name, spec if name.startswith("v.") else Spec(tuple(sizes.get(n, n) for n in spec.shape), spec.dtype))
        for name, spec in slots
    ]
    one = [(name, spec) for name, spec in wide if not name.startswith("a.blk.") or "blk.0." in name]
    audio = {"block_count": 1, "embedding_length": 512, "feed_forward_length": 512, "projection_dim": 512}
    changed = {f"clip.audio.{key}": KV("u32", value) for key, value in audio.items()}
    changed |= {"clip.vision.projection_dim": KV("u32", 512)} if "clip.vision.projection_dim" in keys else {}
    return {**keys, **changed}, one


def tower(keys: Metadata, slots: Tensors) -> None:
    """The towers of a Gemma 3 in place of all that was there."""
    keys.clear()
    keys_of, slots[:] = projector("gemma3")
    keys.update(keys_of)


TOKENIZER = "tokenizer.ggml."
BPE = put(tokenizer__ggml__model=("str", "gpt2"), tokenizer__ggml__merges=("arr[str]", ["a b"]))
ARRAYS = ("tokens", "scores", "token_type")
MET = [
    Met("nothing wrong", lambda keys, slots: None, set(), True),
    Met("alignment 8", put(general__alignment=("u32", 8), general__name=("str", "x" * 16)), set(), True),
    Met("data that can't be mapped", put(general__alignment=("u32", 8), general__name=("str", "x" * 24)),
        {"gguf/data-start"}),
    Met("q4_0 without quantization_version", blocks, {"gguf/no-quantization-version"}, True),
    Met("an architecture of Ollama", renamed("gptoss"), {"llamacpp/architecture"}),
    Met("another of Ollama", renamed("mllama"), {"llamacpp/architecture"}),
    Met("flux", renamed("flux"), {"llamacpp/architecture"}),
    Met("whisper", renamed("whisper"), {"llamacpp/architecture"}),
    Met("a name without a graph", renamed("gptj"), {"llamacpp/architecture"}),
    Met("a list in place of a table's one number", put(llama__feed_forward_length=("arr[u32]", [64, 96])),
        {"gguf/layer-array", "llamacpp/unchecked"}),
    Met("a projector", tower, {COMPANION}, True),
    Met("a projector without a modality", both(tower, put(clip__has_vision_encoder=("bool", False))),
        {COMPANION, "llamacpp/mmproj-modality"}),
    Met("a projector of no known type", both(tower, put(clip__projector_type=("str", "clap"))),
        {COMPANION, "llamacpp/mmproj-type"}),
    Met("a projector without its number of heads", both(tower, drop("clip.vision.attention.head_count")),
        {COMPANION, "llamacpp/mmproj-key"}),
    Met("a projector with a mean of two colors", both(tower, put(clip__vision__image_mean=("arr[f32]", [0.5, 0.5]))),
        {COMPANION, "llamacpp/mmproj-channels"}),
    Met("a projector of two activations", both(tower, put(clip__use_silu=("bool", True))),
        {COMPANION, "llamacpp/mmproj-activation"}),
    Met("a projector without a tensor", both(tower, drop("v.blk.0.attn_q.weight")),
        {COMPANION, "llamacpp/mmproj-tensor"}),
    Met("an adapter", both(drop("output.weight", "token_embd.weight"), put(general__type=("str", "adapter"))),
        {COMPANION}, None),
    Met("a vocabulary", drop(*(name for name, _ in tensors())),
        {"llamacpp/vocabulary-only", "gguf/header-padding"}),
    Met("no size keys", drop("llama.embedding_length", "llama.context_length"), {"llamacpp/key", "llamacpp/size"}),
    Met("no number of layers", drop("llama.block_count"), {"llamacpp/key", "llamacpp/size"}),
    Met("no epsilon", drop("llama.attention.layer_norm_rms_epsilon"), {"llamacpp/key"}),
    Met("no tokenizer", drop(*(TOKENIZER + x for x in ("model", *ARRAYS))), {"llamacpp/key", "llamacpp/size"}),
    Met("an unknown tokenizer", put(tokenizer__ggml__model=("str", "bpe")), {"llamacpp/tokenizer"}),
    Met("no list of tokens", drop(*(TOKENIZER + x for x in ARRAYS)), {"llamacpp/tokenizer", "llamacpp/size"}),
    Met("merges", BPE, set(), True),
    Met("no merges", put(tokenizer__ggml__model=("str", "gpt2")), {"llamacpp/tokenizer"}),
    Met("no merges, as Kimi K2", put(tokenizer__ggml__model=("str", "gpt2"), tokenizer__ggml__pre=("str", "kimi-k2")),
        set(), True),
    Met("a known split", both(BPE, put(tokenizer__ggml__pre=("str", "llama-bpe"))), set(), True),
    Met("an unknown split", both(BPE, put(tokenizer__ggml__pre=("str", "mine"))), {"llamacpp/pre-tokenizer"}),
    Met("a count in place of tokens", both(drop(*(TOKENIZER + x for x in ARRAYS)),
        put(tokenizer__ggml__model=("str", "none"), llama__vocab_size=("u32", VOCAB))), set(), True),
    Met("neither a count nor tokens", both(drop(*(TOKENIZER + x for x in ARRAYS)),
        put(tokenizer__ggml__model=("str", "none"))), {"llamacpp/size"}),
    Met("Mixtral", experts(2, 1), set(), True),
    Met("Mixtral of 2023", mixtral_of_2023, {"llamacpp/missing", "llamacpp/extra"}),
    Met("more experts used than there are", experts(2, 3), {"llamacpp/experts"}),
    Met("no expert used", experts(2, 0), {"llamacpp/experts"}),
    Met("odd groups", experts(4, 2, expert_group_count=3, expert_group_used_count=1), {"llamacpp/experts"}),
    Met("groups that aren't used", experts(4, 2, expert_group_count=2), {"llamacpp/experts"}),
    Met("groups", experts(4, 2, expert_group_count=2, expert_group_used_count=1), set(), True),
    Met("an expert used where there is none", put(llama__expert_used_count=("u32", 1)), {"llamacpp/experts"}),
    Met("an unknown stretch", put(llama__rope__scaling__type=("str", "ntk")), {"llamacpp/rope"}),
    Met("part of a head rotates", put(llama__rope__dimension_count=("u32", 4)), {"llamacpp/rope"}),
    Met("all of a head rotates", put(llama__rope__dimension_count=("u32", 8)), set(), True),
    Met("more further layers than layers", put(llama__nextn_predict_layers=("u32", 2)), {"llamacpp/layers"}),
    Met("a tensor is missing", drop("blk.0.ffn_up.weight"), {"llamacpp/missing"}),
    Met("a tied output", drop("output.weight"), set(), True),
    Met("another shape", widened("blk.0.ffn_up.weight"), {"llamacpp/shape"}),
    Met("more rows than tokens", widened("token_embd.weight"), {"llamacpp/shape", "tokenizer/gguf-size"}),
    Met("a tensor too many", lambda keys, slots: slots.append(("v.weight", Spec((32,), F32))), {"llamacpp/extra"}),
    Met("half of a bias", lambda keys, slots: slots.append(("blk.0.attn_q.bias", Spec((32,), F32))),
        {"llamacpp/optional"}, True),
    Met("values of another length", both(renamed("gemma"), drop("output.weight"), put(
        gemma__attention__key_length=("u32", 8), gemma__attention__value_length=("u32", 4))), {"llamacpp/heads"}),
    Met("a Phi-3 by its name", put(general__name=("str", "My Phi-3")), {"llamacpp/named-tokens"}),
    Met("a Phi-3 with its tokens", both(put(general__name=("str", "phi3")), tokens_called(
        "</s>", "<unk>", "<s>", "<|endoftext|>")), set(), True),
    *(Met(f"{name} outside the vocabulary", put(**{f"tokenizer__ggml__{name}_token_id": ("u32", 99_999_999)}),
          {"llamacpp/token-id"}, True) for name in ("bos", "eos", "padding", "mask")),
    Met("a number that is built in", both(renamed("gemma3n"), put(
        gemma3n__embedding_length_per_layer_input=("u32", 64))), {"llamacpp/number"}, whole=False),
]  # fmt: skip


def written(met: Met, folder: Path) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(model(met.change))
    return path


@pytest.mark.parametrize("met", MET, ids=lambda met: met.name)
def test_a_file_as_it_is_met(met: Met, tmp_path: Path) -> None:
    report = wb.verify(written(met, tmp_path))
    found = {f.rule for f in report.findings}
    assert (found if met.whole else found & met.rules) == met.rules
    assert report.verdicts[0].accepts is met.loads


@pytest.mark.parametrize("met", [met for met in MET if COMPANION in met.rules], ids=lambda met: met.name)
def test_the_page_refuses_a_companion_as_verify_does(met: Met, tmp_path: Path) -> None:
    path = written(met, tmp_path)
    answer = page_verdict(str(path), wb.verify(path), wb.scan(path)).answers[3]
    assert answer.level is (Level.ERROR if met.loads is False else Level.INFO), answer


@pytest.mark.oracle
@pytest.mark.parametrize("met", [met for met in MET if met.loads is not None], ids=lambda met: met.name)
def test_llama_cpp_says_the_same(met: Met, judge: Judge, tmp_path: Path) -> None:
    refusal = judge.refusal(written(met, tmp_path))
    assert (refusal is None) == (met.loads and COMPANION not in met.rules), refusal  # with its option: judged below


# ---------------------------------------------------------------- projectors


def write_projector(path: Path, keys: Metadata, slots: Tensors) -> set[str]:
    """Writes a projector of zeros; returns our rules that it breaks."""
    path.write_bytes(render(gguf.layout(slots, keys), lambda name, size: bytes(size)))
    return {f.rule for f in wb.verify(path).findings if "mmproj" in f.rule}


@pytest.mark.oracle
@pytest.mark.parametrize("name", projectors())
def test_llama_cpp_loads_every_projector_and_computes_with_it(name: str, mmproj_judge: Judge, tmp_path: Path) -> None:
    keys, slots = projector(name)
    assert write_projector(tmp_path / "m.gguf", keys, slots) == set()
    assert mmproj_judge.refusal(tmp_path / "m.gguf") is None


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("name", projectors())
def test_a_projector_without_a_key_or_a_tensor_is_judged_as_llama_cpp_does(
    name: str, mmproj_judge: Judge, tmp_path: Path
) -> None:
    """A key is an error exactly where llama.cpp refuses the file; a tensor also where it computes without it."""
    keys, slots = projector(name)
    path, wrong = tmp_path / "m.gguf", []
    for fault, (changed, tensors_) in projector_faults(name, keys, slots).items():
        ours, refusal = write_projector(path, changed, tensors_), mmproj_judge.refusal(path)
        if (refusal and not ours) or (not refusal and ours - {"llamacpp/mmproj-tensor"}):
            wrong.append((fault, ours, refusal))
    assert wrong == []


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["qwen3-tts", "pocket-tts"])
def test_llama_cpp_refuses_a_file_that_only_generates(name: str, mmproj_judge: Judge, tmp_path: Path) -> None:
    keys, slots = projector(name)
    generator = {k: v for k, v in keys.items() if not k.startswith(("clip.audio.", "clip.has_audio"))}
    ours = write_projector(tmp_path / "m.gguf", generator, [slot for slot in slots if slot[0].startswith("a.gen.")])
    assert "llamacpp/mmproj-modality" in ours
    assert "Failed to load CLIP model" in (mmproj_judge.refusal(tmp_path / "m.gguf") or "")


WHOLE = ("gemma3", "qwen2.5-vl", "voxtral")  # whose every key is left out in turn


def projector_faults(name: str, keys: Metadata, slots: Tensors) -> dict[str, tuple[Metadata, Tensors]]:
    """Every key of some projectors; some keys and tensors of a first layer of the others; left out one at a time."""
    out = {f"without {k}": ({a: b for a, b in keys.items() if a != k}, slots) for k in keys if k.startswith("clip.")}
    if name in WHOLE:
        return out
    for i, (tensor, _) in enumerate(slots):
        if "blk." not in tensor or "blk.0." in tensor:
            out[f"without {tensor}"] = keys, [*slots[:i], *slots[i + 1 :]]
    return dict(sorted(out.items(), key=lambda fault: crc32(f"{name} {fault[0]}".encode()))[:KEPT])


@pytest.mark.slow
@pytest.mark.oracle
def test_every_projector_type_of_the_table_is_one_of_llama_cpp(mmproj_judge: Judge, tmp_path: Path) -> None:
    """A file without tensors is refused, but not for its type."""
    keys, _ = projector("gemma3")
    types = [*projector_table().types, "clap"]
    for name in types:
        keys["clip.projector_type"] = KV("str", name)
        ours = write_projector(tmp_path / "m.gguf", keys, [])
        refusal = mmproj_judge.refusal(tmp_path / "m.gguf") or ""
        assert ("unknown projector type" in refusal) == (name == "clap") == ("llamacpp/mmproj-type" in ours), name


@pytest.mark.slow
@pytest.mark.oracle
def test_the_projector_types_that_stack_frames_need_their_number(mmproj_judge: Judge, tmp_path: Path) -> None:
    keys, _ = projector("voxtral")
    key, path = "clip.audio.projector.stack_factor", tmp_path / "m.gguf"
    del keys[key]
    for name in projector_table().types:
        keys["clip.projector_type"] = KV("str", name)
        write_projector(path, keys, [])
        ours = [f for f in wb.verify(path).findings if key in f.message]
        assert (key in (mmproj_judge.refusal(path) or "")) == bool(ours), name


def needed_keys() -> Iterator[tuple[str, str, str]]:
    """Each key of the table that a projector needs, with a projector that needs it, and the projector's type."""
    rows = projector_table()
    for modality, name, kind in (("vision", "gemma3", "gemma3"), ("audio", "voxtral", "voxtral")):
        for key in (*rows.required, *rows.required_of[modality]):
            yield name, kind, f"clip.{modality}.{key}"
    own = {
        "dots_ocr": "dots-ocr",
        "dots3note_v": "dots3-note",
        "cohere2v": "cohere2-vision",
        "paddleocr": "paddleocr-vl",
        "phi4": "phi4-vision",
        "youtuvl": "youtu-vl",
        "deepseek4v": "deepseek-v4-vision",
        "deepseekocr": "deepseek-ocr",
        "deepseekocr2": "deepseek-ocr2",
        "granite_speech": "granite-speech",
        "granite4_vision": "granite4-vision",
        "mimovl": "mimo-v2.5",
        "mimo_audio": "mimo-v2.5",
        "lfm2": "lfm2-vl",
        "d1omni_v": "lfm2-vl",
    }
    for kind, keys in rows.required_by.items():
        for key in map("clip.{}".format, keys):
            yield own.get(kind, "qwen2.5-vl" if ".vision." in key else "voxtral"), kind, key


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "kind", "key"), [*needed_keys()])
def test_every_key_of_the_table_is_needed_by_llama_cpp(
    name: str, kind: str, key: str, mmproj_judge: Judge, tmp_path: Path
) -> None:
    keys, slots = projector(name)
    keys["clip.projector_type"] = KV("str", kind)
    del keys[key]
    assert "llamacpp/mmproj-key" in write_projector(tmp_path / "m.gguf", keys, slots)
    assert key.rpartition(".")[2] in str(
        mmproj_judge.refusal(tmp_path / "m.gguf")
    )  # the name, or an assertion about it


def test_an_alignment_of_one_is_a_warning() -> None:
    """The specification asks for a multiple of 8; llama.cpp for data at a multiple of 32, wherever that comes from."""
    for pad in range(32):
        architecture = Item(STR, "llama" + "x" * pad)
        keys: list[tuple[str | bytes, Item]] = [
            ("general.architecture", architecture),
            ("general.alignment", Item(U32, 1)),
        ]
        index = gguf.parse(BytesSource(File(keys=keys, tensors=[Tensor("t", [8])], alignment=1).bytes()))
        found = gguf.check(index)
        assert {f.severity for f in found} == {Severity.WARNING}
        assert ("gguf/data-start" in {f.rule for f in found}) == bool(index.data_start[0] % 32)


def test_a_type_of_bitnet_is_named() -> None:
    data = File(tensors=[Tensor("t", [32], 36)], data=bytes(64)).bytes()
    found = [f for f in gguf.parse(BytesSource(data), level="lenient").findings if f.rule == "gguf/tensor-type"]
    assert "I2_S, which only the fork bitnet.cpp can read" in found[0].message


@pytest.mark.mutation
@pytest.mark.parametrize("rule", list(RULES))
def test_without_its_rule_nothing_is_found(rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for part in ("KINDS", "PROJECTORS", "REFUSALS", "LOADED", "OPEN"):
        rest = {name: row for name, row in getattr(module, part).items() if name != rule}
        monkeypatch.setattr(module, part, rest)
    met = next(met for met in MET if rule in met.rules)
    assert rule not in {f.rule for f in wb.verify(written(met, tmp_path)).findings}


def test_every_architecture_has_a_row() -> None:
    """Every GGUF that a family of ours makes is of an architecture that llama.cpp knows."""
    from weighbridge.models.arch.registry import families

    assert {f.gguf for f in families().values()} - table().architecture.keys() - {"toy"} == set()
    assert findings({"general.architecture": "llama"}, {"x": (1,)}, "")[0].path == ""
