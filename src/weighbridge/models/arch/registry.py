"""Builds families from their tables, finds them by a config's class or a GGUF's architecture, and lists them.

Only tables whose text contains the name are parsed, and those that these inherit from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import FAMILY_TABLE
from weighbridge.models.arch.config import path_of_text, value_at, with_part
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.rules import completing_rules
from weighbridge.models.arch.size_keys import LAYERS
from weighbridge.models.arch.tables import short_forms
from weighbridge.models.arch.tables.check import check
from weighbridge.models.arch.tables.documents import (
    document,
    plugged_in,
    projector_document,
    projector_texts,
    resolve,
    shipped,
    wrappers,
)
from weighbridge.models.arch.tables.schema import FamilyTable
from weighbridge.models.arch.tables.spec import Architecture, build_dialect, build_role
from weighbridge.models.arch.tables.validate import convert

_PLAIN: Final = "; wb convert SRC DST.safetensors and wb rename keep every tensor"
_ELSEWHERE: Final = MappingProxyType(
    {
        "WhisperForConditionalGeneration": "whisper.cpp runs it: wb convert SRC ggml-NAME.bin, --dtype q5_0",
        "BitNetForCausalLM": f"llama.cpp's graph computes SiLU in place of its squared ReLU; mlx-lm reads the packed "
        f"folder as it is{_PLAIN}",
        "UltravoxModel": "its language model is another model: wb convert SRC DST/ --with-mmproj --text-model {} "
        "writes both; wb convert SRC DST.gguf --mmproj writes its tower",
    }
)
_CHECK: Final = "wb arch check PATH names the nearest family and the differences; wb arch list shows all"
_GUIDE: Final = "wb arch show llama shows what a table has; wb help guide-families describes it"


def build_family(document: Mapping[str, Any], *, checked: bool = False) -> Family:
    """Builds a family from its whole table (see `documents.resolve`). UsageError names the first mistake. `checked`:
    the table is known to be right, as the shipped ones are."""
    table = convert(document, FamilyTable)
    roles = {name: build_role(name, entry) for name, entry in table.role.items()}
    dialects = {name: build_dialect(name, table, roles) for name in table.dialect}
    if not checked:
        check(table, roles, dialects.values())
        completing_rules(tuple(table.config_rules))
    architectures = {
        name: Architecture(
            **{
                **structs.asdict(entry),
                "name": name,
                "stated_type": entry.shared_type or entry.model_type,
                "defaults": {**table.defaults, **entry.defaults},
            }
        )
        for name, entry in table.architecture.items()
    }
    return Family(
        table.name, table.gguf, MappingProxyType(roles), MappingProxyType(dialects), MappingProxyType(architectures),
        MappingProxyType(table.size), MappingProxyType(table.index), MappingProxyType(table.layers), table,
    )  # fmt: skip


@cache
def family(name: str) -> Family:
    """The family of a table, shipped or from a plug-in."""
    try:
        return build_family(resolve(document(name)), checked=name in shipped())
    except UsageError as error:
        raise UsageError(f"the table of {name}: {error}") from None


@cache
def families() -> Mapping[str, Family]:
    """Every family by name."""
    return MappingProxyType({name: family(name) for name in (*shipped(), *plugged_in())})


def read_family(path: Path) -> Family:
    """Reads a family from a user's TOML file. FormatError or UsageError names the mistake."""
    import tomllib

    try:
        with path.open("rb") as file:
            text = file.read(FAMILY_TABLE + 1)
        if len(text) > FAMILY_TABLE:
            raise FormatError(f"is larger than a table of names: over {FAMILY_TABLE:,} bytes", path=str(path))
        return build_family(resolve(short_forms.parse(text.decode())))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FormatError(f"is not TOML: {error}", path=str(path)) from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=_GUIDE) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: invalid table: {error}", hint=_GUIDE) from None


def _candidates(
    words: Sequence[str], pattern: str, also: Callable[[str], bool] = lambda text: False
) -> Iterator[Family]:
    """The families whose tables match a regular expression or `also`: shipped ones first, then those of plug-ins.
    `words`: each match contains one of them, which is searched for much faster."""
    matches = re.compile(pattern, re.MULTILINE).search
    for tables in (shipped, plugged_in):
        for name, text in tables().items():
            if (any(word in text for word in words) and matches(text)) or also(text):
                yield family(name)


def _naming(name: object) -> Iterator[Family]:
    """The families whose tables contain a class or a `model_type` of this name, or of a wrapper's other name."""
    if not isinstance(name, str):
        return iter(())
    names = (name, *(cls for cls, wrapper in wrappers().items() if name in wrapper.aliases))
    return _candidates(names, rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")


def _of_model_type(name: str) -> Iterator[Family]:
    """The families that have a class of this `model_type`, in their tables or by the wrappers of several parts."""
    wrapped = [cls for cls, wrapper in wrappers().items() if wrapper.model_type == name]
    pattern = "|".join(
        (rf'model_type\s*=\s*"{re.escape(name)}"', *(rf"(?<!\w){re.escape(cls)}(?!\w)" for cls in wrapped))
    )
    found = _candidates((name, *wrapped), pattern)
    return (f for f in found if any(a.model_type == name for a in f.architectures.values()))


def with_mtp_layers(config: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """The config with the actual number of multi-token prediction layers: fine-tuned models often drop these layers but
    keep the number."""
    model_type = config.get("model_type")
    same = _of_model_type(model_type) if isinstance(model_type, str) else ()
    counting = next((f for f in same if (hf := f.document.dialect.get("hf")) is not None and hf.mtp_count), None)
    return config if counting is None else with_counted_layers(config, counting, names)


def with_counted_layers(config: Mapping[str, Any], counting: Family, names: Collection[str]) -> Mapping[str, Any]:
    """The config with the actual number of layers under `mtp_count` of a family's dialect."""
    counted = counting.document.dialect["hf"]
    if counted.mtp_count is None:
        return config
    prefixes = tuple(counted.mtp_prefixes.values())
    numbered = next((new.partition("{n}")[0] for new in prefixes if "{n}" in new), None)
    if numbered is None:  # there is one such layer, which has a name of its own
        count = int(any(name.startswith(prefixes) for name in names))
    else:
        layer = re.compile(rf"{re.escape(numbered)}([0-9]{{1,4}})\.")
        count = max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)
    path = path_of_text(config, counting.architecture(config), LAYERS.config)
    part = value_at(config, path)
    # under canonical names they are numbered as the layers after the last one
    further = f"layers.{part.get(LAYERS.config[0])}."
    if part.get(counted.mtp_count, 0) == count or (not count and any(name.startswith(further) for name in names)):
        return config
    return with_part(config, path, {**part, counted.mtp_count: count})


def families_of_class(name: str) -> Iterator[Family]:
    """The families with a class of transformers, by its name or an alias."""
    return (
        f for f in _naming(name) if name in f.architectures or any(name in a.aliases for a in f.architectures.values())
    )


def families_of_graph(architecture: object) -> Iterator[Family]:
    """The families with this `general.architecture`."""
    pattern = rf'^(gguf|name)\s*=\s*"{re.escape(str(architecture))}"'
    return (f for f in _candidates([str(architecture)], pattern, _inherits_graph) if f.gguf == architecture)


@cache
def _inherits_graph(text: str) -> bool:
    """Whether a table has another's `general.architecture`."""
    if re.search(r"^like\s*=", text, re.MULTILINE) is None:
        return False
    return re.search(r"^gguf\s*=", text.partition("\n[")[0], re.MULTILINE) is None


def _class_name(config: Mapping[str, Any]) -> Any:
    """The first of `architectures`, else `model_type`."""
    listed = config.get("architectures")
    return listed[0] if isinstance(listed, list | tuple) and listed else config.get("model_type")


def family_of_hf(config: Mapping[str, Any], own: Sequence[Family] = ()) -> Family:
    """The family of a config.json; `own` families come first. UnsupportedError names the config's class."""
    listed = config.get("architectures")
    stated = listed or config.get("model_type")
    for candidate in chain(own, _naming(_class_name(config))):
        if candidate.architecture(config) is not None:
            return candidate
    if not stated:
        raise UnsupportedError(
            "the model's architecture is unknown: no config.json names it",
            hint="put the model's config.json next to the weights, or name it: wb convert SRC DST --config FILE; "
            ".safetensors and .npz need none, nor does a GGUF for a program of your own: --arch NAME",
        )
    named = ", ".join(map(str, stated)) if isinstance(stated, list) else str(stated)
    text = config.get("text_model_id")  # of an Ultravox
    check = _CHECK if projector_of_hf(config) is None else "wb convert SRC DST.gguf --mmproj writes its tower"
    hint = _ELSEWHERE.get(named, check).format(f"hf://{text}" if isinstance(text, str) else "TEXT")
    raise UnsupportedError(f"no family has the architecture {named}", hint=hint)


def family_of_gguf(
    metadata: Mapping[str, Any], own: Sequence[Family] = (), names: Sequence[str] | Mapping[str, Any] = ()
) -> Family:
    """The family of a GGUF by its `general.architecture`. If several share a graph, it is the one whose conditions
    match the keys and tensors (`names`), else the first one without conditions. That of an mmproj file is its
    projector."""
    architecture = metadata.get("general.architecture")
    if architecture == "clip":
        return projector_of_gguf(metadata, names)
    if (chosen := next((candidate for candidate in own if candidate.gguf == architecture), None)) is not None:
        return chosen
    same = [*families_of_graph(architecture)]
    marked = (f for f in same if len(same) > 1 and f.shows(metadata, names))
    open_to_any = (f for f in same if any(a.gguf == [] for a in f.architectures.values()))
    if (matching := next(marked, None) or next(open_to_any, None)) is not None:
        return matching
    raise UnsupportedError(f"no family has the GGUF architecture {architecture}", hint=_CHECK)


@cache
def _projector(name: str) -> Family:
    return build_family(projector_document(name), checked=True)


@cache
def projectors() -> Mapping[str, Family]:
    """The tables of projectors by projector type: the towers of a model that sees or hears, with what connects them to
    its language model. llama.cpp has them in a GGUF of their own, of architecture `clip`."""
    return MappingProxyType({name: _projector(name) for name in projector_texts()})


def projector_of_hf(config: Mapping[str, Any]) -> Family | None:
    """The projector of a config.json, if any. Classes are in the tables, not in their mixins."""
    if not isinstance(cls := _class_name(config), str):
        return None
    naming = (_projector(name) for name, text in projector_texts().items() if cls in text)
    return next((table for table in naming if table.architecture(config) is not None), None)


def lacks_encoder(projector: Family, names: Collection[str]) -> bool:
    """Whether a model has nothing that sees or hears, so that llama.cpp loads no mmproj file of it."""
    encoder = projector.document.encoder
    return bool(encoder) and not any(name.startswith(encoder) for name in names)


def projector_of_gguf(metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any] = ()) -> Family:
    """The projector of a GGUF of architecture `clip`. If several classes have its types, it is the one whose conditions
    match the keys and tensors (`names`), else the first one without conditions. UnsupportedError if no table has
    them."""
    stated = {key: str(value) for key in _PROJECTOR_TYPES if (value := metadata.get(f"clip.{key}"))}
    if _PROJECTOR_TYPES[0] in stated:  # llama.cpp then ignores the others
        stated = {_PROJECTOR_TYPES[0]: stated[_PROJECTOR_TYPES[0]]}
    same = [table for table in projectors().values() if projector_types(table) == stated]
    marked = (table for table in same if table.shows(metadata, names))
    open_to_any = (table for table in same if any(a.gguf == [] for a in table.architectures.values()))
    if (matching := next(marked, None) or next(open_to_any, None)) is not None:
        return matching
    hint = (
        f"known: {', '.join(sorted({t for table in projectors().values() for t in projector_types(table).values()}))}"
    )
    raise UnsupportedError(f"no table has the projector type {', '.join(stated.values()) or None}", hint=hint)


_PROJECTOR_TYPES: Final = (
    "projector_type", "vision.projector_type", "audio.projector_type", "gen.audio.projector_type",
)  # fmt: skip


def projector_types(table: Family) -> dict[str, str]:
    """The projector types of a table by their keys: one for the file, or one for each modality."""
    meta = table.document.meta
    rows = meta.key if meta is not None else ()
    return {row.name.removeprefix("{a}."): str(row.value) for row in rows if row.name.endswith("projector_type")}
