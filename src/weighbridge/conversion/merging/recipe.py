"""A recipe of a merge: mergekit's YAML, unchanged (arcee-ai/mergekit, docs), as plain data with places for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.base.records import dataclass
from weighbridge.conversion.merging.vocabularies import BASE, UNION, TokenizerRule, TokenSource
from weighbridge.models.lora.weights import split_weight

Parameters = Mapping[str, Any]

_KEYS: Final = frozenset({
    "merge_method", "models", "slices", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source",
    "tokenizer", "chat_template", "modules", "name",
})  # fmt: skip
#: mergekit's name of the only module of a language model.
_MODULE: Final = "default"
_MULTIPLE: Final = 1 << 16


@dataclass(frozen=True)
class MergeSource:
    """A model of a recipe, as it names it. `layers`: the run [first, end) of its layers; None for all."""

    model: str
    parameters: Parameters = field(default_factory=dict)
    layers: range | None = None


@dataclass(frozen=True)
class MergeSlice:
    """Consecutive layers of the result: as many layers of each source, which become one."""

    sources: tuple[MergeSource, ...]
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """`base`: the model that differences are taken from; None if the recipe has none. `sliced`: whether it gives layers
    of models rather than whole models. `tokenizer`: whose tokens the result has; None if all models must have the same.
    `chat_template`: "auto" for the models' commonest, or its text; None for that of the tokenizer."""

    method: str
    slices: tuple[MergeSlice, ...]
    base: str | None = None
    parameters: Parameters = field(default_factory=dict)
    dtype: str | None = None
    sliced: bool = False
    tokenizer: TokenizerRule | None = None
    chat_template: str | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """All models, each once; the base first."""
        listed = (source.model for part in self.slices for source in part.sources)
        return tuple(dict.fromkeys((*((self.base,) if self.base else ()), *listed)))


def read_yaml(path: Path) -> Any:
    """Returns the plain data of a recipe's file. Raises FormatError for a file that isn't YAML, OSError."""
    import yaml  # type: ignore[import-untyped]

    with open(path, "rb") as file:
        data = file.read(CONFIG_JSON + 1)
    if len(data) > CONFIG_JSON:
        raise FormatError(f"a recipe of more than {CONFIG_JSON} bytes", path=str(path))
    try:
        return yaml.safe_load(data)  # in Python: the C loader crashes on deep nesting, this one raises
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(f"not YAML: {reason}", path=str(path)) from None


def parse_recipe(data: Any, path: Path | None = None) -> Recipe:
    """Returns the recipe that plain data describe. Raises UsageError with the place. `path`: the file, whose folder
    relative names may start from."""
    location = path.name if path else "the recipe"
    top = _mapping(data, location)
    if unknown := [key for key in top if key not in _KEYS]:
        raise UsageError(f"{location}: no key is called {unknown[0]!r}", hint=f"known keys: {', '.join(sorted(_KEYS))}")
    if top.get("modules") is not None:
        top = _without_modules(top, location)
    method = _text(top.get("merge_method"), f"{location}: merge_method")
    if ("models" in top) == ("slices" in top):
        raise UsageError(f"{location}: give either 'models' or 'slices'")
    if "slices" in top:
        slices = tuple(
            _slice(row, f"{location}: slices[{n}]", path)
            for n, row in enumerate(_list(top["slices"], f"{location}: slices"))
        )
    else:
        rows = enumerate(_list(top["models"], f"{location}: models"))
        slices = (MergeSlice(tuple(_source(row, f"{location}: models[{n}]", path) for n, row in rows)),)
    base, template = top.get("base_model"), top.get("chat_template")
    return Recipe(
        method=method,
        slices=slices,
        base=None if base is None else _place(_model(base, f"{location}: base_model"), path),
        parameters=_mapping(top.get("parameters") or {}, f"{location}: parameters"),
        dtype=top.get("out_dtype") or top.get("dtype"),
        sliced="slices" in top,
        tokenizer=_tokenizer(top, location, path),
        chat_template=None if template is None else _text(template, f"{location}: chat_template"),
    )


def _without_modules(top: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Returns a recipe of the module of a language model with its models, or slices, and parameters at the top. A
    module's parameters come before those of the top. Raises UsageError for other modules."""
    modules = _mapping(top["modules"], f"{location}: modules")
    if extra := modules.keys() - {_MODULE}:
        raise UsageError(
            f"{location}: modules: {min(extra)!r} isn't supported: a model with several modules isn't merged in parts",
            hint=f"{_MODULE!r}, the module of a language model; or save the language model alone, and merge that",
        )
    if "models" in top or "slices" in top:
        raise UsageError(f"{location}: give either 'models', 'slices' or 'modules'")
    module = _mapping(modules.get(_MODULE), f"{location}: modules: {_MODULE}")
    if unknown := module.keys() - {"models", "slices", "parameters"}:
        raise UsageError(
            f"{location}: modules: {_MODULE}: no key is called {min(unknown)!r}", hint="models, slices, parameters"
        )
    listed = {key: module[key] for key in ("models", "slices") if module.get(key) is not None}
    parameters = {
        name: value for part in (top, module) for name, value in
        _mapping(part.get("parameters") or {}, f"{location}: parameters").items()
    }  # fmt: skip
    return {key: value for key, value in top.items() if key != "modules"} | listed | {"parameters": parameters}


def _tokenizer(top: Mapping[str, Any], location: str, path: Path | None) -> TokenizerRule | None:
    """The rule of `tokenizer_source`, or of `tokenizer`, which may also have sources of tokens."""
    if top.get("tokenizer") is None:
        source = top.get("tokenizer_source")
        return None if source is None else tokenizer_rule(_model(source, f"{location}: tokenizer_source"), path)
    location = f"{location}: tokenizer"
    if top.get("tokenizer_source") is not None:
        raise UsageError(f"{location} and tokenizer_source exclude each other")
    row = _mapping(top["tokenizer"], location)
    if unknown := row.keys() - {"source", "tokens", "pad_to_multiple_of"}:
        raise UsageError(f"{location}: no key is called {min(unknown)!r}", hint="source, tokens, pad_to_multiple_of")
    rule = tokenizer_rule(_model(row.get("source", UNION), f"{location}: source"), path)
    multiple = row.get("pad_to_multiple_of")
    if multiple is not None and (type(multiple) is not int or not 0 < multiple <= _MULTIPLE):
        raise UsageError(f"{location}: pad_to_multiple_of must be a number from 1 to {_MULTIPLE}, not {multiple!r}")
    tokens = _mapping(row.get("tokens") or {}, f"{location}: tokens")
    sources = {token: _token(value, f"{location}: tokens: {token}", path) for token, value in tokens.items()}
    return replace(rule, tokens=sources, multiple=multiple or 0)


def tokenizer_rule(source: str, path: Path | None = None) -> TokenizerRule:
    """Returns the rule of a word: base, union, or a model."""
    return TokenizerRule(source if source in (BASE, UNION) else _place(source, path))


def _token(value: Any, location: str, path: Path | None) -> TokenSource:
    row = _mapping(value, location)
    if unknown := row.keys() - {"source", "force"}:
        raise UsageError(f"{location}: no key is called {min(unknown)!r}", hint="source, force")
    force, source = row.get("force", False), row.get("source")
    if not isinstance(force, bool):
        raise UsageError(f"{location}: force must be true or false, not {force!r}")
    details = source if isinstance(source, Mapping) else {}
    if details.get("kind") == "zero":
        return TokenSource(None, force=force)
    if details.get("kind") != "model_token":
        return TokenSource(_place(_model(source, f"{location}: source"), path), force=force)
    named = [details[key] for key in ("token", "token_id") if details.get(key) is not None]
    if len(named) != 1 or type(named[0]) is not (str if "token" in details else int):
        raise UsageError(f"{location}: model_token needs either a token or a token_id")
    return TokenSource(_place(_model(details.get("model"), f"{location}: model"), path), named[0], force)


def _slice(row: Any, location: str, path: Path | None) -> MergeSlice:
    row = _mapping(row, location)
    if unknown := row.keys() - {"sources", "parameters"}:
        raise UsageError(f"{location}: {sorted(unknown)[0]!r} isn't supported", hint="sources and parameters")
    rows = enumerate(_list(row.get("sources"), f"{location}: sources"))
    sources = tuple(_source(item, f"{location}: sources[{n}]", path, layers=True) for n, item in rows)
    if len({len(source.layers or ()) for source in sources}) > 1:
        raise UsageError(f"{location}: its sources have different numbers of layers")
    return MergeSlice(sources, _mapping(row.get("parameters") or {}, f"{location}: parameters"))


def _source(row: Any, location: str, path: Path | None, *, layers: bool = False) -> MergeSource:
    row = {"model": row} if isinstance(row, str) else _mapping(row, location)
    accepted = {"model", "parameters", *(("layer_range",) if layers else ())}
    if unknown := row.keys() - accepted:
        raise UsageError(f"{location}: {sorted(unknown)[0]!r} isn't supported", hint=", ".join(sorted(accepted)))
    model = _place(_model(row.get("model"), f"{location}: model"), path)
    parameters = _mapping(row.get("parameters") or {}, f"{location}: parameters")
    if not layers:
        return MergeSource(model, parameters)
    ends = row.get("layer_range")
    whole = isinstance(ends, list) and len(ends) == 2 and all(type(end) is int for end in ends)
    if not whole or not 0 <= ends[0] < ends[1]:
        raise UsageError(f"{location}: layer_range must be [first, end], not {ends!r}")
    return MergeSource(model, parameters, range(*ends))


def model_of(value: Any, location: str, path: Path | None) -> str:
    """Returns the path, or the address, of a model that a recipe names. Raises UsageError."""
    return _place(_model(value, location), path)


def _model(value: Any, location: str) -> str:
    """The name of a model, which mergekit also spells as an object."""
    if isinstance(value, Mapping):
        nested = value.get("model")
        name = nested.get("path") if isinstance(nested, Mapping) else nested
        lora = value.get("lora")
        adapter = lora.get("path") if isinstance(lora, Mapping) else lora
        value = f"{name}+{adapter}" if adapter else name
    return _text(value, location)


def _place(name: str, path: Path | None) -> str:
    """A model's path: relative to the working folder, else to the recipe's; OWNER/NAME is a repository of the Hub."""
    places = []
    for part, weight in map(split_weight, name.split("+")):
        if "://" in part or Path(part).exists():
            place = part
        elif path is not None and (path.parent / part).exists():
            place = str(path.parent / part)
        else:
            place = f"hf://{part}" if part.count("/") == 1 and part[0] not in "./~" else part
        places.append(f"{place}:{weight}" if weight else place)
    return "+".join(places)


def _mapping(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or any(not isinstance(key, str) for key in value):
        raise UsageError(f"{location} must be an object of named values")
    return dict(value)


def _list(value: Any, location: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise UsageError(f"{location} must be a list")
    return value


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{location} must be a name")
    return value
