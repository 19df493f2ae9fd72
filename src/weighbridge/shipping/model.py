"""The model that is shipped: its files and keys, and as one GGUF where the target needs that."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from weighbridge.api.writing import plan_convert, plan_merge, plan_quantize
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.ftypes import BY_NUMBER, GUESSED
from weighbridge.base.limits import MIB
from weighbridge.containers.formats import GGUF_MAGIC
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.plan.model import Plan
from weighbridge.io.location import open_source
from weighbridge.io.source import FileSource, Source
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.locate import locate
from weighbridge.models.modelfile import Modelfile, described_by, is_modelfile
from weighbridge.models.open import open_headers

_LICENCES: Final = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "NOTICE", "USE_POLICY.md")
#: GGUF key of a sampling default -> PARAMETER of Ollama.
SAMPLING: Final[Mapping[str, str]] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}


@contextmanager
def opened(path: Path) -> Iterator[Checkpoint]:
    """The model's headers, closed again; of a Modelfile the headers of what it is made FROM."""
    with open_headers(path).model as model:
        yield model


def refuse_modelfile(path: Path, program: str) -> None:
    """UsageError for a Modelfile, which is Ollama's alone."""
    if is_modelfile(path):
        raise UsageError(f"{program} takes no Modelfile", hint="name the model's file or folder")


def own_adapters(model: Checkpoint) -> bool:
    """Whether llama.cpp reads the model's adapters as they are, beside a model that is one GGUF."""
    place = model.place
    return model.format == "gguf" and place.single and all(map(_is_gguf, place.adapters))


def _is_gguf(path: Path) -> bool:
    """By its first bytes: files in Ollama's store have no endings."""
    if not path.is_file():
        return False
    with open_source(path) as source:
        return source.head(len(GGUF_MAGIC)) == GGUF_MAGIC


def in_place(model: Checkpoint) -> bool:
    """Whether the weights are files of their own, not parts of others (llamafiles)."""
    return all(isinstance(file, FileSource) for file in model.index.files)


@dataclass(frozen=True)
class GgufParts:
    """A model as one GGUF. `file`: an existing one; else `plan` makes it. `keys`: its key-values. `folder`: where files
    beside it are. `described`: the Modelfile that it was named by, or one made of Ollama's store."""

    file: Path | None
    plan: Plan | None
    keys: Mapping[str, Any]
    size: int
    parameters: int
    folder: Path
    described: Modelfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"])

    @property
    def file_type(self) -> str:
        """The name of `general.file_type`; "unknown" where the file doesn't say it."""
        number = self.keys.get("general.file_type")
        row = BY_NUMBER.get(number % GUESSED) if isinstance(number, int) else None
        return row.name if row else "unknown"

    @property
    def jinja(self) -> str | None:
        """The chat template."""
        found = self.keys.get("tokenizer.chat_template")
        return found if isinstance(found, str) and found.strip() else None

    @cached_property
    def special(self) -> dict[str, str]:
        """The texts of bos_token and eos_token."""
        tokens = self.keys.get("tokenizer.ggml.tokens") or ()
        found = {}
        for name in ("bos", "eos"):
            number = self.keys.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(number, int) and 0 <= number < len(tokens):
                found[f"{name}_token"] = str(tokens[number])
        return found

    def ends(self, text: str) -> bool:
        """Whether a special token's text is one at which llama.cpp stops by itself."""
        tokens = self.keys.get("tokenizer.ggml.tokens") or ()
        numbers = (self.keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return any(isinstance(n, int) and 0 <= n < len(tokens) and tokens[n] == text for n in numbers)

    @property
    def sampling(self) -> dict[str, Any]:
        """The model's own sampling defaults, as parameters of Ollama."""
        found = {name: self.keys[key] for key, name in SAMPLING.items() if key in self.keys}
        return {name: short(value) if isinstance(value, float) else value for name, value in found.items()}

    def licences(self) -> list[str]:
        """The texts of the licence files beside the model, else the name of its licence."""
        paths = (self.folder / name for name in _LICENCES)
        texts = [p.read_text("utf-8", "replace") for p in paths if p.is_file() and p.stat().st_size <= MIB]
        named = self.keys.get("general.license")
        return texts or ([named] if isinstance(named, str) and named else [])


def short(value: float) -> float:
    """The shortest decimal that is the same f32."""
    digits = (float(f"{value:.{n}g}") for n in range(6, 10))
    return next((d for d in digits if struct.pack("<f", d) == struct.pack("<f", value)), value)


def as_gguf(path: Path, type: str | None, staged: Path) -> GgufParts:
    """The model at `path` as one GGUF, made at `staged` where it isn't one yet."""
    if type is None and (found := stored_gguf(path)) is not None:
        return found
    with opened(path) as model:
        several = model.format == "gguf" and not model.place.single
    made = planned_gguf(path, _made(path, type, staged, several))
    notes = (f"converted to {made.size:,} bytes of GGUF on the way", *made.notes)
    if type is None and not several:
        notes = (*notes, "unquantized, as the source is; --type Q4_K_M quantizes it on the way")
    return replace(made, notes=notes)


def stored_gguf(path: Path) -> GgufParts | None:
    """The model at `path` if it is one GGUF already. UnsupportedError where that is a projector or an adapter."""
    with opened(path) as model:
        if not (own_adapters(model) and in_place(model)):
            return None
        file, index = model.place.weights[0], model.index
        if (kind := model.metadata.get("general.type", "model")) != "model":
            raise UnsupportedError(f"{file} is no model but {kind}", hint="name the model's file")
        kept = {key: _plain(value) for key, value in model.metadata.items()}
        folder = model.place.folder
        return GgufParts(file, None, kept, index.files[0].size, _count(index), folder, described_by(path))


def planned_gguf(path: Path, plan: Plan) -> GgufParts:
    """The model at `path` as the one GGUF of a plan."""
    index = gguf.parse(_PlannedBytes(plan))
    losses = (f"{x.tensor}: {x.message}" if x.tensor else x.message for x in plan.losses)
    return GgufParts(None, plan, index.metadata, plan.size, _count(index), locate(path).folder, described_by(path),
                     (*plan.notes, *losses))  # fmt: skip


def _plain(value: Any) -> Any:
    """A lazy array as a list, so that it outlives the file."""
    return value if isinstance(value, str | int | float | bool) else list(value)


def _count(index: Any) -> int:
    return sum(entry.spec.elements for entry in index)


def _made(path: Path, type: str | None, staged: Path, several: bool) -> Plan:
    if type is not None:
        return plan_quantize(path, staged, type, parents=True)
    if several:
        return plan_merge(path, staged, parents=True)
    return plan_convert(path, staged, to="gguf", parents=True)


class _PlannedBytes(Source):
    """The header of a planned file; the data, which isn't computed, reads as zeros."""

    def __init__(self, plan: Plan) -> None:
        layout = plan.files[0].layout
        self.name, self.size, self._pieces = plan.files[0].name, layout.size, layout.pieces

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = bytes(len(out))
        for at, piece in self._pieces:
            low, high = max(at, offset), min(at + len(piece), offset + len(out))
            if low < high:
                out[low - offset : high - offset] = piece[low - at : high - at]
        return len(out)


def planned_keys(plan: Plan) -> Mapping[str, Any] | None:
    """The key-values of a planned GGUF; None where its header can't be read."""
    try:
        return gguf.parse(_PlannedBytes(plan)).metadata
    except WeighbridgeError:
        return None
