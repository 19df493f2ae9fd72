"""The model to ship, with its files and metadata, converted to a single GGUF if the target needs that."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.api.writing import plan_convert, plan_merge, plan_quantize
from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.ftypes import BY_NUMBER, GUESSED
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.containers.formats import GGUF_MAGIC, PIPELINES
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.sniff.diffusion import architectures
from weighbridge.conversion.gguf.loadable import LayoutSource
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.result import results_first
from weighbridge.io.location import open_source
from weighbridge.io.source import FileSource
from weighbridge.models.llamacpp.companions import FoundTowers, companion, find_towers
from weighbridge.models.llamacpp.towers import has_towers
from weighbridge.models.locate import locate
from weighbridge.models.model import OpenModel
from weighbridge.models.modelfile import Modelfile, described_by, is_modelfile
from weighbridge.models.open import open_headers
from weighbridge.shipping.plan import ShipRequest
from weighbridge.shipping.targets import server_flags

_LICENCES: Final = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "NOTICE", "USE_POLICY.md")
#: Ollama's name of each sampling default in a GGUF.
SAMPLING: Final[Mapping[str, str]] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}


def refuse_modelfile(path: Path, program: str) -> None:
    """Raises UsageError for a Modelfile, which only Ollama reads."""
    if is_modelfile(path):
        raise UsageError(f"{program} doesn't read Modelfiles", hint="name the model's file or folder")


def is_gguf(path: Path) -> bool:
    """Returns whether a file starts with GGUF's magic; files in Ollama's store have no suffix."""
    if not path.is_file():
        return False
    with open_source(path) as source:
        return source.head(len(GGUF_MAGIC)) == GGUF_MAGIC


def in_place(model: OpenModel) -> bool:
    """Returns whether the weights are complete files, not parts of llamafiles."""
    return all(isinstance(file, FileSource) for file in model.index.files)


class TowersFile(NamedTuple):
    """A model's mmproj file. `plan`: writes it first; None if it exists."""

    path: Path
    size: int
    plan: Plan | None = None


@dataclass(frozen=True)
class GgufParts:
    """A model as a single GGUF. `file`: an existing one; otherwise `plan` converts it. `keys`: its metadata. `folder`:
    contains the model. `described`: the Modelfile that names it, or one derived from Ollama's store. `towers`: the
    mmproj file."""

    file: Path | None
    plan: Plan | None
    keys: Mapping[str, Any]
    size: int
    parameters: int
    folder: Path
    described: Modelfile | None = None
    notes: tuple[str, ...] = ()
    towers: TowersFile | None = None

    @property
    def architecture(self) -> str:
        architecture = self.keys.get("general.architecture")
        if not isinstance(architecture, str):
            raise UnsupportedError(
                f"{self.file or self.folder} has no general.architecture, which programs need to run it",
                hint="wb verify lists further missing keys",
            )
        return architecture

    @property
    def file_type(self) -> str:
        """The name of `general.file_type`; "unknown" if the file has none."""
        number = self.keys.get("general.file_type")
        row = BY_NUMBER.get(number % GUESSED) if isinstance(number, int) else None
        return row.name if row else "unknown"

    @property
    def jinja(self) -> str | None:
        """The chat template."""
        template = self.keys.get("tokenizer.chat_template")
        return template if isinstance(template, str) and template.strip() else None

    @cached_property
    def special(self) -> dict[str, str]:
        """The texts of bos_token and eos_token."""
        return special_texts(self.keys)

    def ends(self, text: str) -> bool:
        """Returns whether llama.cpp stops at this special token by default."""
        tokens = self.keys.get("tokenizer.ggml.tokens") or ()
        numbers = (self.keys.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return any(isinstance(n, int) and 0 <= n < len(tokens) and tokens[n] == text for n in numbers)

    @property
    def sampling(self) -> dict[str, Any]:
        """The model's sampling defaults, as parameters of Ollama."""
        values = {name: self.keys[key] for key, name in SAMPLING.items() if key in self.keys}
        return {name: shortest_f32(value) if isinstance(value, float) else value for name, value in values.items()}

    def licences(self) -> list[str]:
        """Returns the texts of the licence files next to the model, else the name of its licence."""
        paths = (self.folder / name for name in _LICENCES)
        texts = [p.read_text("utf-8", "replace") for p in paths if p.is_file() and p.stat().st_size <= MIB]
        name = self.keys.get("general.license")
        return texts or ([name] if isinstance(name, str) and name else [])


def special_texts(keys: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of bos_token and eos_token in a GGUF."""
    tokens = keys.get("tokenizer.ggml.tokens") or ()
    numbers = ((name, keys.get(f"tokenizer.ggml.{name}_token_id")) for name in ("bos", "eos"))
    return {f"{name}_token": str(tokens[n]) for name, n in numbers if isinstance(n, int) and 0 <= n < len(tokens)}


def shortest_f32(value: float) -> float:
    """Returns the shortest decimal that rounds to the same f32."""
    digits = (float(f"{value:.{n}g}") for n in range(6, 10))
    return next((d for d in digits if struct.pack("<f", d) == struct.pack("<f", value)), value)


def as_gguf(request: ShipRequest, staged: Path, staged_towers: Path | None = None) -> GgufParts:
    """Returns a model as a single GGUF, converted to `staged` unless it is one already, with its mmproj file: the
    requested one, that of the model, or one that is converted to `staged_towers`, by default next to `staged` under the
    name that the reference converter gives it."""
    path, type, given = request.path, request.options.type, request.options.mmproj
    if type is None and (stored := stored_gguf(path, given)) is not None:
        return _of_language(path, stored)
    plan, notes = _planned(request, staged)
    parts = _of_language(path, planned_gguf(path, plan, given))
    notes = (f"converted to {parts.size:,} bytes of GGUF on the fly", *parts.notes, *notes)
    if type is None and parts.file_type in ("F32", "F16", "BF16"):
        notes = (*notes, "unquantized, like the source; --type Q4_K_M quantizes it on the fly")
    towers = parts.towers
    if towers is not None and towers.plan is not None:
        target = staged_towers or staged.with_name(towers.path.name)
        towers = TowersFile(target, towers.size, _alone(plan, 1, target))
    return replace(parts, plan=_alone(plan, 0, staged), notes=notes, towers=towers)


def _planned(request: ShipRequest, staged: Path) -> tuple[Plan, tuple[str, ...]]:
    """Returns the plan of a GGUF, with the mmproj file if the model has towers and none was named, and notes."""
    options = request.options
    with open_headers(request.path).model as model:
        if model.place.trainer in PIPELINES:
            raise UnsupportedError(
                f"{request.path} is the pipeline of an image or video model: no program on llama.cpp runs it",
                hint="wb convert writes it for ComfyUI: --comfy-folders, or GGUFs of its parts with --to gguf",
            )
        several, sees = model.format == "gguf" and not model.place.single, has_towers(model)
    how: dict[str, Any] = {"parents": True, "overwrite": options.overwrite, "arch_file": options.arch_file}
    if several and options.type is None:
        return plan_merge(request.path, staged, **how), ()
    run: Callable[..., Plan] = plan_convert if options.type is None else plan_quantize
    how |= {"to": "gguf"} if options.type is None else {"ftype": options.type}
    if not sees or options.mmproj is not None:
        return run(request.path, staged, **how), ()
    try:
        return run(request.path, f"{staged}/", with_mmproj=True, **how), ()
    except WeighbridgeError as error:
        return run(request.path, staged, **how), (f"without its towers: {error.message}",)


def _alone(plan: Plan, number: int, target: Path) -> Plan:
    """Returns the plan of one of a plan's files, at `target`."""
    return replace(plan, files=plan.files[number : number + 1], target=target, folder=False)


def _of_language(path: Path, parts: GgufParts) -> GgufParts:
    """Returns the parts. Raises UnsupportedError for a model that programs on llama.cpp's server don't run."""
    if (name := parts.keys.get("general.architecture")) in architectures():
        raise UnsupportedError(
            f"{path} is an image or video model ({name}): no program on llama.cpp runs it",
            hint="ComfyUI-GGUF reads the GGUF that wb convert and wb quantize write of it",
        )
    server_flags(path, parts.keys, parts.file, parts.towers.path if parts.towers is not None else None)
    return parts


def stored_gguf(path: Path, mmproj: str | os.PathLike[str] | None = None) -> GgufParts | None:
    """Returns the model at `path` if it is a single GGUF, with its mmproj file. Raises UnsupportedError for a projector
    or an adapter."""
    with open_headers(path).model as model:
        if not (model.format == "gguf" and model.place.single and in_place(model)):
            return None
        if not all(map(is_gguf, model.place.adapters)):
            return None
        file, index = model.place.weights[0], model.index
        if (kind := model.metadata.get("general.type", "model")) != "model":
            raise UnsupportedError(f"{file} isn't a model but a GGUF of type {kind}", hint="name the model's file")
        # Lazy arrays become lists, so that they outlive the file.
        keys = {k: v if isinstance(v, str | int | float | bool) else list(v) for k, v in model.metadata.items()}
        parameters = sum(entry.spec.elements for entry in index)
        parts = GgufParts(file, None, keys, index.files[0].size, parameters, model.place.folder, described_by(path))
        return _with_towers(parts, find_towers(path, model, mmproj))


def _with_towers(parts: GgufParts, found: FoundTowers) -> GgufParts:
    towers = None if found.path is None else TowersFile(found.path, found.path.stat().st_size)
    return replace(parts, towers=towers, notes=(*parts.notes, *found.notes))


def planned_gguf(path: Path, plan: Plan, mmproj: str | os.PathLike[str] | None = None) -> GgufParts:
    """Returns the model at `path` as the GGUF of a plan, the first of its files, with its mmproj file."""
    file, *rest = plan.files
    index = gguf.parse(LayoutSource(file.name, file.layout))
    losses = (f"{x.tensor}: {x.message}" if x.tensor else x.message for x in results_first(plan.losses))
    parameters = sum(entry.spec.elements for entry in index)
    parts = GgufParts(None, plan, index.metadata, file.layout.size, parameters, locate(path).folder, described_by(path),
                      (*plan.notes, *losses))  # fmt: skip
    if rest:
        return replace(parts, towers=TowersFile(Path(rest[0].name), rest[0].layout.size, plan))
    with open_headers(path).model as model:
        if model.format == "gguf":
            return _with_towers(parts, find_towers(path, model, mmproj))
    if mmproj is None:
        return parts
    return _with_towers(parts, FoundTowers(companion(Path(mmproj), "projector", "mmproj", index.metadata)))
