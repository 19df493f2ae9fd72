"""Records what the reference converter makes of the cases: `python -m tests.models.record_reference`.

Tokenizers are left out (they have tests of their own): the reference's `set_vocab` is replaced by nothing, for BERT by
the one key that comes from the config.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from tests.models.reference_cases import CASES, Case

from weighbridge.models.arch.registry import family_of_hf

GOLDEN = Path(__file__).parent / "golden" / "reference.json"


def tensors(case: Case) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a case's folder."""
    family = family_of_hf(case.config)
    sizes = family.sizes_from_hf(case.config)
    places = family.expansion(case.dialect, sizes, case.prefix).places.values()
    wanted = {None, *case.groups} | (set() if case.tied or family.name == "bert" else {"only head"})
    return {p.name: p.shape for p in places if p.need in wanted} | case.extra


def deal(case: Case) -> dict[str, str]:
    """Each tensor's file; neighbours go to different shards, so that a layer's experts come in no even order."""
    if case.shards == 1:
        return dict.fromkeys(tensors(case), "model.safetensors")
    files = [f"model-{i + 1:05}-of-{case.shards:05}.safetensors" for i in range(case.shards)]
    return {name: files[crc32(name.encode()) % case.shards] for name in tensors(case)}


def write(case: Case, root: Path) -> Path:
    from safetensors.numpy import save_file

    folder = root / case.folder
    files = {"config.json": json.dumps(case.config), **case.files}
    files |= {"generation_config.json": json.dumps(case.generation)} if case.generation else {}
    files |= {"README.md": case.card} if case.card else {}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    placed, shapes = deal(case), tensors(case)
    for file in set(placed.values()):
        save_file({n: np.zeros(shapes[n], np.float32) for n, f in placed.items() if f == file}, folder / file)
    if case.shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def record(gguf: Any, path: Path) -> dict[str, Any]:
    """A GGUF's key-values and tensors, in order."""
    reader = gguf.GGUFReader(path)
    return {
        "keys": list(_keys(reader)),
        "tensors": [[t.name, t.tensor_type.name, [int(n) for n in reversed(t.shape)]] for t in reader.tensors],
        "rope_freqs": next((t.data.tobytes().hex() for t in reader.tensors if t.name == "rope_freqs.weight"), None),
    }


def _keys(reader: Any) -> Iterator[list[Any]]:
    names = {
        "UINT32": "u32",
        "UINT64": "u64",
        "INT32": "i32",
        "FLOAT32": "f32",
        "STRING": "str",
        "BOOL": "bool",
        "ARRAY": "arr",
    }
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            kinds = [names[t.name] for t in field.types]
            value = field.contents()
            kind = f"arr[{kinds[1]}]" if kinds[0] == "arr" else kinds[0]
            yield [key, kind, struct.pack("<f", value).hex() if kind == "f32" else value]


def record_all(cases: Mapping[str, Case], path: Path) -> None:
    from tests.oracles import tree

    root = str(tree.require())
    sys.path[:0] = [f"{root}/gguf-py"]
    sys.path.append(root)  # last: it has a package `tests` too
    import gguf
    import torch
    from conversion import get_model_class  # type: ignore[import-not-found]
    from conversion.bert import BertModel  # type: ignore[import-not-found]

    BertModel.set_vocab = lambda self: self.gguf_writer.add_token_type_count(self.hparams.get("type_vocab_size", 1))
    types = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
    out = {}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            source, target = write(case, Path(folder)), Path(folder) / "out.gguf"
            model = get_model_class(case.config["architectures"][0])
            if not issubclass(model, BertModel):
                model.set_vocab = lambda self: None
            model(source, gguf.LlamaFileType(types[case.outtype]), target).write()
            out[name] = record(gguf, target)
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")


if __name__ == "__main__":
    record_all(CASES, GOLDEN)
