"""What llama-quantize and `wb quantize` are both given: small sources that reach every branch, and command lines.

llama-quantize doesn't build the model, so tensors may have few rows: eight layers cost nothing. Sources are written by
the reference's own Python package, importance matrices in both of llama.cpp's forms by hand.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
LAYERS: Final = 8
_DENSE: Final[Mapping[str, Shape]] = {
    "attn_q": (2, 256), "attn_k": (2, 256), "attn_v": (2, 256), "attn_output": (2, 256), "ffn_gate": (2, 256),
    "ffn_up": (2, 256), "ffn_down": (2, 512), "attn_norm": (256,), "ffn_norm": (256,),
}  # fmt: skip
_EXPERTS: Final[Mapping[str, Shape]] = {
    **{name: shape for name, shape in _DENSE.items() if "ffn_" not in name or "norm" in name},
    "ffn_gate_inp": (8, 256), "ffn_gate_exps": (8, 2, 256), "ffn_up_exps": (8, 2, 256), "ffn_down_exps": (8, 2, 512)
}  # fmt: skip
# Rows that are no whole blocks: of 256 (two kinds), of 32 at all.
_ODD: Final[Mapping[str, Shape]] = {
    **_DENSE,
    "attn_q": (2, 288),
    "attn_output": (2, 160),
    "ffn_down": (2, 320),
    "attn_k": (2, 100),
}


class Model(NamedTuple):
    """A source: its layers' tensors, the type of its matrices, what else it has."""

    layers: Mapping[str, Shape]
    dtype: str
    keys: Mapping[str, Any] = {}
    tied: bool = False
    extra: Mapping[str, Shape] = {}
    shards: int = 1


MODELS: Final[Mapping[str, Model]] = {
    "dense": Model(_DENSE, "BF16"),
    "experts": Model(_EXPERTS, "F16", {"expert_count": 8, "expert_used_count": 2}),
    # leading dimensions of 1, a vector as a matrix, a name of five letters, a bias, a tensor nobody knows
    "odd": Model(
        _ODD, "F32", tied=True,
        extra={"thin.weight": (1, 256), "flat.weight": (1, 8, 256), "abcde": (4, 256), "blk.1.attn_q.bias": (256,),
               "blk.3.ssm_conv1d.weight": (4, 256), "tall.weight": (256, 1), "blk.0.other": (4, 256)},
    ),
    "shards": Model(_DENSE, "F16", shards=3),
    "quantized": Model(_DENSE, "Q8_0"),
    # a file that speaks of a quantization and of a split already, in the middle of its keys
    "keyed": Model(
        _DENSE, "F16",
        keys={"general.quantization_version": 1, "general.file_type": 7, "split.count": 0, "general.alignment": 32,
              "some.flags": [True, False], "some.numbers": [1, 2, 3], "some.floats": [0.5, 1e-30],
              "some.text": "Zürich", "some.texts": ["a", "", "é"], "some.switch": True, "last.key": "end"},
    ),
}  # fmt: skip


def make(name: str, folder: Path) -> Path:
    """The source, made once."""
    if not (found := sorted(folder.glob(f"{name}*.gguf"))):
        _write(folder, name, MODELS[name])
        found = sorted(folder.glob(f"{name}*.gguf"))
    return found[0]


def tensors(model: Model) -> Iterator[tuple[str, Shape]]:
    """Names and shapes, in an order that is not llama-quantize's."""
    yield "token_embd.weight", (16, 256)
    for layer in reversed(range(LAYERS)):
        for part, shape in model.layers.items():
            yield f"blk.{layer}.{part}.weight", shape
    yield "output_norm.weight", (256,)
    if not model.tied:
        yield "output.weight", (16, 256)
    yield from model.extra.items()


def values(name: str, shape: Shape) -> NDArray[np.float32]:
    """Normal, with a spread and some outliers that depend on the name; exact in BF16 and in F16."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    found = rng.standard_normal(shape).astype(np.float32) * np.float32(0.02 * (1 + zlib.crc32(name.encode()) % 7))
    found[rng.random(shape) < 0.01] *= 8
    return (found.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float16).astype(np.float32)


def _data(name: str, shape: Shape, dtype: str) -> tuple[NDArray[Any], Any]:
    import gguf

    kind = gguf.GGMLQuantizationType["F32" if len(shape) == 1 or "ffn_gate_inp" in name else dtype]
    numbers = values(name, shape)
    return (numbers, None) if kind.name == "F32" else (gguf.quants.quantize(numbers, kind), kind)


def _write(folder: Path, name: str, model: Model) -> None:
    """By the reference's writer, which also cuts it into shards."""
    import gguf

    most = -(-len(list(tensors(model))) // model.shards) if model.shards > 1 else 0
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=most)
    writer.add_context_length(512)
    writer.add_embedding_length(256)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(512)
    writer.add_head_count(8)
    _add(writer, model.keys)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(16)
    for tensor, shape in tensors(model):
        data, kind = _data(tensor, shape, model.dtype)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    _finish(writer)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, keys: Mapping[str, Any]) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        add = writer.add_uint16 if key.startswith("split.") else kinds[type(value)]
        add(key if "." in key else f"llama.{key}", value)


# -- importance matrices ----------------------------------------------------------------------------------------------


def _weights(name: str, shape: Shape) -> tuple[NDArray[np.float32], int]:
    """Sums of squares for the columns of each matrix, and how many tokens."""
    matrices = shape[-3] if len(shape) > 2 else 1
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    return (rng.random((matrices, shape[-1])).astype(np.float32) ** 3 * 700 + np.float32(0.01)), 512 * 3


def matrices(model: Model) -> dict[str, Shape]:
    """What an importance matrix of the model has: its matrices in layers, and the output."""
    wanted = {n: s for n, s in tensors(model) if len(s) > 1 and n.startswith("blk.") and n.endswith(".weight")}
    return wanted | ({} if model.tied else {"output.weight": (16, 256)})


def legacy_imatrix(path: Path, model: Model) -> Path:
    """Counts, names, sizes, data; then the last chunk and the dataset (save_imatrix_legacy)."""
    out = [struct.pack("<i", len(matrices(model)))]
    for name, shape in matrices(model).items():
        sums, _ = _weights(name, shape)
        out += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", 3, sums.size), (sums * 3).tobytes()]
    path.write_bytes(b"".join(out) + struct.pack("<ii", 3, 9) + b"train.txt")
    return path


def gguf_imatrix(path: Path, model: Model, drop: Callable[[str], bool] = lambda name: False) -> Path:
    """`NAME.in_sum2` and `NAME.counts`, with the keys that say what it is; one expert was never used."""
    import gguf

    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a/long/path/" + "x" * 140 + ".txt", "second.txt"])
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, shape in matrices(model).items():
        if drop(name):
            continue
        sums, tokens = _weights(name, shape)
        counts = np.full((len(sums), 1), tokens, np.float32)
        if len(sums) > 1:
            counts[1], sums[1] = 0, 0
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", counts)
    _finish(writer)
    return path


# -- command lines -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """`arguments` before the files; `FOLDER` in them is where the importance matrices lie."""

    name: str
    model: str
    arguments: tuple[str, ...]
    ftype: str

    def command(self, folder: Path, source: Path, target: Path) -> list[str]:
        return [*(a.replace("FOLDER", str(folder)) for a in self.arguments), str(source), str(target), self.ftype]


FTYPES: Final = (
    "Q1_0", "Q2_0", "Q4_0", "Q4_1", "MXFP4_MOE", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "Q2_K", "Q2_K_S", "IQ4_NL", "IQ4_XS",
    "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16", "F32", "IQ3_S",
    "IQ3_M", "IQ3_XS", "IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M",
)  # fmt: skip
# llama-quantize stops at these without an importance matrix, or, of the last, at rows of 288.
NEED_IMATRIX: Final = {"Q2_K_S", "IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M", "IQ3_XS"}
_NO_FALLBACK: Final = {"Q1_0"}

_MATRIX = ("--imatrix", "FOLDER/imatrix-dense.gguf")
_OPTIONS: Final = (
    ("pure", "dense", ("--pure",), "Q4_K_M"),
    ("pure-imatrix", "dense", ("--pure", *_MATRIX), "IQ4_XS"),
    ("leave-output", "dense", ("--leave-output-tensor",), "Q5_K_S"),
    ("output-type", "dense", ("--output-tensor-type", "q5_1"), "Q4_K_M"),
    ("output-type-tied", "odd", ("--output-tensor-type", "Q8_0"), "Q4_K_M"),
    ("embedding-type", "dense", ("--token-embedding-type", "Q3_k"), "Q4_K_S"),
    ("tensor-type", "dense",
     ("--tensor-type", "attn_V=q8_0", "--tensor-type", r"blk\.[0-3]\.ffn_(up|gate)=q5_0"), "Q4_K_M"),
    ("tensor-type-file", "dense", ("--tensor-type-file", "FOLDER/types.txt"), "Q3_K_M"),
    ("tensor-type-plain", "dense", ("--tensor-type", "ffn_down=f16", "--tensor-type", "attn_k=bf16"), "Q6_K"),
    ("include", "dense", ("--include-weights", "attn", "--include-weights", "ffn_up", *_MATRIX), "Q4_0"),
    ("exclude", "dense", ("--exclude-weights", "ffn_down", *_MATRIX), "Q4_K_M"),
    ("exclude-all", "dense", ("--exclude-weights", "weight", *_MATRIX), "IQ4_XS"),
    ("legacy", "dense", ("--imatrix", "FOLDER/imatrix-dense.dat"), "Q4_K_M"),
    ("prune", "dense", ("--prune-layers", "2,5,6"), "Q4_K_M"),
    ("prune-first", "experts", ("--prune-layers", "0", "--imatrix", "FOLDER/imatrix-experts.gguf"), "Q3_K_L"),
    ("override", "dense",
     ("--override-kv", "general.name=str:A B", "--override-kv", "llama.rope.freq_base=float:12345.678", "--override-kv",
      "x.y=int:7", "--override-kv", "x.z=bool:true", "--override-kv", "x.y=int:8"), "Q8_0"),
    ("override-decides", "experts", ("--override-kv", "llama.expert_count=int:4"), "Q4_K_M"),
    ("requantize", "quantized", ("--allow-requantize",), "Q4_K_M"),
    ("requantize-same", "quantized", ("--allow-requantize",), "Q8_0"),
    ("shards-merged", "shards", (), "Q4_K_M"),
    ("shards-kept", "shards", ("--keep-split",), "Q4_K_M"),
    ("one-kept", "dense", ("--keep-split",), "Q5_0"),
    ("keyed", "keyed", _MATRIX, "Q4_K_M"),
    ("copy", "keyed", (), "COPY"),
    ("copy-guess", "quantized", ("--override-kv", "a.b=int:1"), "COPY"),
    ("copy-pruned", "dense", ("--prune-layers", "7"), "copy"),
    ("number", "dense", (), "15"),
    ("alias", "dense", (), "q3_K"),
)  # fmt: skip


# The reference needs more than ten seconds for the tables of each of these grids before its first block.
LONG: Final = {"IQ1_S", "IQ1_M", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS"}


def cases(without: Collection[str] = ()) -> Iterator[Case]:
    """Every file type but `without` on every kind of source it can be made of, then every option."""
    for ftype in FTYPES:
        if ftype in without:
            continue
        if ftype not in NEED_IMATRIX:
            yield Case(f"{ftype}-dense", "dense", (), ftype)
            if ftype not in _NO_FALLBACK:
                yield Case(f"{ftype}-odd", "odd", (), ftype)
        yield Case(f"{ftype}-dense-imatrix", "dense", _MATRIX, ftype)
        yield Case(f"{ftype}-experts-imatrix", "experts", ("--imatrix", "FOLDER/imatrix-experts.gguf"), ftype)
    yield from (Case(*row) for row in _OPTIONS)


def prepare(folder: Path) -> dict[str, Path]:
    """All sources and importance matrices in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("dense", "experts"):
        gguf_imatrix(folder / f"imatrix-{name}.gguf", MODELS[name])
    legacy_imatrix(folder / "imatrix-dense.dat", MODELS["dense"])
    (folder / "types.txt").write_text("attn_q=q6_K  ffn_down=Q5_K\nblk.7.attn_v=iq4_nl\n")
    return {name: make(name, folder) for name in MODELS}


def files_of(target: Path) -> list[bytes]:
    """What was written: the file itself, or shards beside its name (llama-quantize), or in its folder (ours)."""
    folder = target.with_suffix("")
    found = [target] if target.is_file() else sorted(target.parent.glob(f"{target.stem}-0*-of-*.gguf"))
    return [path.read_bytes() for path in found or sorted(folder.glob("*.gguf"))]


def ours(command: Sequence[str]) -> int:
    """The same words, given to `wb quantize`."""
    from weighbridge.cli.main import main

    return main(["quantize", "--quiet", *command])


def difference(found: bytes, expected: bytes) -> str:
    """Where two files part, in the words of what lies there; empty where they don't."""
    if found == expected:
        return ""
    at = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    return f"byte {at:,} of {len(found):,} and {len(expected):,}"
