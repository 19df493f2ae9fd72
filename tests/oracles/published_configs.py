"""Published models at their real size, as sparse folders: what ours and the reference converter would write of each.

    python -m tests.oracles.published_configs            compare ours with the reference, model by model
    python -m tests.oracles.published_configs --record   and write what the reference makes into published_configs.toml

A folder has a config.json made of the facts in published_configs.toml, and a safetensors file that is all hole: its
header, and as many bytes as the tensors would have. Names and shapes are those of the family's table, which the small
models prove.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import weighbridge as wb
from weighbridge.models.arch.registry import family_of_hf

TABLE = Path(__file__).with_name("published_configs.toml")
_BYTES = 2  # of a number in BF16


class Made(NamedTuple):
    """What is written of a model: tensors as name, type and shape, and the architecture's key-values, both in order."""

    tensors: list[list[Any]]
    keys: list[list[Any]]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()[:16]


def published() -> dict[str, dict[str, Any]]:
    """The models by name: `config`, and what is recorded of the reference."""
    return tomllib.loads(TABLE.read_text("utf-8"))


def make_folder(config: Mapping[str, Any], folder: Path, groups: Collection[str] = ()) -> Path:
    """A sparse folder of a model of this config. `groups`: those of the family's optional tensors that it has."""
    folder.mkdir(parents=True)
    family = family_of_hf(config)
    sizes = family.sizes_from_hf(config)
    wanted = {None, *groups} if tied(config) else {None, "only head", *groups}
    places = [p for p in family.expansion("hf", sizes).places.values() if p.need in wanted]
    header: dict[str, Any] = {}
    at = 0
    for place in places:
        end = at + _BYTES * _elements(place.shape)
        header[place.name] = {"dtype": "BF16", "shape": list(place.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    return folder


def _elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


def tied(config: Mapping[str, Any]) -> bool:
    """Whether the output is the embedding."""
    part = config.get("text_config", config)
    return bool(part.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))


# ---------------------------------------------------------------------- ours


def ours(folder: Path) -> Made:
    """What `wb convert` plans: no tensor is read."""
    with wb.plan_convert(folder, folder / "out.gguf", dtype="bf16", tokenizer=False) as plan:
        (file,) = plan.files
        path = folder / "header.gguf"
        with path.open("wb") as opened:
            for at, piece in file.layout.pieces:
                opened.seek(at)
                opened.write(piece)
            opened.truncate(file.layout.size)
    return read(path)


def read(path: Path) -> Made:
    """The directory and the keys of a GGUF."""
    with wb.open(path) as model:
        keys = [[k, _plain(v)] for k, v in model.metadata.items() if _counts(k)]
        return Made([[name, str(model[name].dtype), list(model[name].shape)] for name in model], keys)


def _counts(key: str) -> bool:
    return not key.startswith(("general.", "tokenizer.", "GGUF.")) and not key.endswith(".vocab_size")


def _plain(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(f"{value:.6g}")  # a config may state a whole number, and a GGUF has the nearest F32
    return value if isinstance(value, str | bool) else [_plain(v) for v in value]


# ---------------------------------------------------------------------- the reference


def reference(folder: Path, given: Mapping[str, Any]) -> Made:
    """What the reference converter would write: its tensors stay lazy, and none is read. `given`: what it is given
    beside the config, where it converts no such model else."""
    from conversion import (  # type: ignore[import-not-found]
        ModelBase,
        ModelType,
        get_model_architecture,
        get_model_class,
    )
    from gguf import LlamaFileType

    hparams = {**ModelBase.load_hparams(folder, False), **given}
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model_class.set_vocab = lambda self: None
    model = model_class(
        folder, LlamaFileType.MOSTLY_BF16, folder / "reference.gguf", dry_run=True, **_whole(hparams, given)
    )
    model.prepare_tensors()
    model.prepare_metadata(vocab_only=False)
    (tensors,), (pairs,) = model.gguf_writer.tensors, model.gguf_writer.kv_data
    keys = [[key, _plain(field.value)] for key, field in pairs.items() if _counts(key)]
    return Made([[name, t.dtype.name, [*t.shape]] for name, t in tensors.items()], keys)


def _whole(hparams: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"hparams": dict(hparams)} if given else {}


def differences(found: Made, wanted: Made) -> list[str]:
    """What differs, in words."""
    out: list[str] = []
    for what, a, b in (("tensor", found.tensors, wanted.tensors), ("key", found.keys, wanted.keys)):
        out += [f"{what} {row} isn't the reference's" for row in a if row not in b][:3]
        out += [f"the reference has the {what} {row}" for row in b if row not in a][:3]
        out += [f"the order of {what}s"] if sorted(map(str, a)) == sorted(map(str, b)) and a != b else []
    return out


def main(arguments: Sequence[str]) -> int:
    from tests.oracles import tree

    root = str(tree.require())
    sys.path[:0] = [root, f"{root}/gguf-py"]
    wrong = 0
    for name, facts in published().items():
        if "same_as" in facts:
            continue
        with tempfile.TemporaryDirectory() as parent:
            folder = make_folder(facts["config"], Path(parent) / re.sub(r"\W", "-", name), facts.get("groups", ()))
            wanted = reference(folder, facts.get("hparams", {}))
            found = differences(ours(folder), wanted)
        wrong += bool(found)
        print(f"{name}: {len(wanted.tensors)} tensors, {'; '.join(found) or 'equal'}")
        if "--record" in arguments:
            _record(name, wanted)
    return 1 if wrong else 0


def _record(name: str, made: Made) -> None:
    """Writes what the reference makes under a model's config."""
    text = TABLE.read_text("utf-8")
    start = text.index(f'["{name}"]')
    end = text.find('\n["', start) + 1 or len(text)
    kept = [line for line in text[start:end].splitlines() if not line.startswith("reference")]
    own = "\n".join((*kept, f'reference = {{ tensors = {len(made.tensors)}, digest = "{made.digest}" }}')) + "\n"
    TABLE.write_text(text[:start] + own + text[end:], "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
