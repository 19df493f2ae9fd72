"""Writes what follows from the code: commands.md from the command line, supported.md from the registries, rules.md from
the tables of rules, prove-faults.md from what the tests recorded, family-schema.md from the schema of family tables,
block-types.md and the C++ structs of native/block_types.hpp from the table of number types, wb(1) by manual.py, api.md
by python_api.py.

python docs/generate.py            write them
python docs/generate.py --check    exit 1 if they are stale (a test and `make lint` do this)
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

sys.path.insert(0, str(Path(__file__).parent))
from manual import manual
from python_api import api

from weighbridge.base.dtypes import BY_NAME, OLD, TABLE, DType, Field
from weighbridge.cli.main import COMMANDS, cli, common_options, load
from weighbridge.containers import every
from weighbridge.containers.base import Rule
from weighbridge.forward import graph as graphs
from weighbridge.models.arch.family import Architecture, Family

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
NOTE = "<!-- Made by docs/generate.py from the code. Don't edit: run `make docs`. -->\n"


# --- commands.md ----------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    yield "# Commands\n"
    yield NOTE
    yield "`wb` is short for `weighbridge`.\n"
    yield from table(
        ("command", "", "also"), ((f"[`{r.name}`](#wb-{r.name})", r.help, ticked(r.aliases)) for r in COMMANDS)
    )
    yield "## Every command has\n"
    yield from table(("option", ""), map(option_row, common_options()))
    yield "## Exit codes\n"
    yield from table(
        ("code", "meaning"),
        (
            ("0", "fine"),
            ("1", "a finding, a difference, a mismatch"),
            ("2", "usage or trouble: unreadable, malformed, unsupported, refused"),
            ("70", "a fault of Weighbridge itself"),
            ("130", "interrupted"),
            ("141", "the reader of the output went away"),
            ("143", "terminated"),
        ),
    )
    common = {param.opts[-1] for param in common_options()}
    for row in COMMANDS:
        yield from one_command(row.name, load(row), common)


def one_command(name: str, command: click.Command, common: set[str]) -> Iterator[str]:
    context = click.Context(command, info_name=f"wb {name}", parent=None)
    yield f"## wb {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\nwb {name} {usage}\n```\n"
    yield paragraphs(command.help or "")
    options = [p for p in command.params if isinstance(p, click.Option) and not common & set(p.opts) and not p.hidden]
    if options:
        yield from table(("option", ""), map(option_row, options))
    lines = (command.epilog or "").replace("\b", "").strip().splitlines()
    yield "\n".join(("```", *(line.strip() for line in lines[1:]), "```", ""))


def paragraphs(text: str) -> str:
    import inspect

    return inspect.cleandoc(text).replace("\b\n", "") + "\n"


def option_row(param: click.Parameter) -> tuple[str, str]:
    assert isinstance(param, click.Option)
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    metavar = "" if param.is_flag or param.count else param.make_metavar(click.Context(cli))
    return f"{names}{f' `{metavar}`' if metavar else ''}", param.help or ""


# --- supported.md ---------------------------------------------------------------------------------------------------


def supported() -> Iterator[str]:
    claims = tomllib.loads((DOCS / "supported.toml").read_text("utf-8"))
    missing = [test for test in all_tests(claims) if not exists(test)]
    if missing:
        raise SystemExit(f"docs/supported.toml names tests that don't exist: {', '.join(missing)}")
    yield "# Supported formats, types and models\n"
    yield NOTE
    yield (
        "**proven**: compared with another implementation by the tests named, or a law that holds over all inputs.\n"
        "**reads**, **writes**: it works, but nobody else's software has confirmed it in a test. **-**: absent.\n"
    )
    yield from containers_part(claims["containers"])
    yield from types_part(claims["types"])
    yield from models_part(claims)
    yield "## Computed families\n"
    yield (
        f"`wb imatrix` runs these without another framework. {links(claims['computed']['proven'])} compares all logits "
        f"with transformers'.\n"
    )
    yield ticked(sorted(graphs.table().graph)) + "\n"
    yield "## Lineage\n"
    yield (
        f"`wb lineage` names no wrong parent among models of known descent ({links(claims['lineage']['proven'])}); "
        "the [guide](guide-lineage.md) has the confusion matrix and the limits.\n"
    )


def containers_part(claims: dict[str, Any]) -> Iterator[str]:
    yield "## Containers\n"
    rows = []
    for f in every():
        proof = claims.get(f.name, {})
        read = grade(f.readable, proof.get("read"), "reads")
        write = grade(bool(f.target), proof.get("write"), "writes")
        if f.readable:
            rows.append((f.title, read, write, links({*proof.get("read", ()), *proof.get("write", ())})))
    yield from table(("format", "read", "write", "tests"), rows)
    others = [f.title for f in every() if not f.readable and f.name not in ("empty", "unknown")]
    yield f"`wb identify` also recognises, by content: {', '.join(others)}.\n"


def types_part(claims: dict[str, Any]) -> Iterator[str]:
    from weighbridge.tensors import kernels

    yield "## Number types\n"
    yield "All of these are stored, moved, split and checked; `decode`, `encode`: to and from float numbers.\n"

    def proof(dtype: DType, known: bool, word: str) -> str:
        if dtype.plain and not dtype.is_float:
            return "stored"  # integers, booleans, complex numbers: the stored bytes are the number
        return grade(known, claims["plain" if dtype.plain else "blocks"], word)

    rows = (
        (
            f"`{t.name}`",
            f"{t.bits:g}",
            f"`{t.safetensors}`" if t.safetensors else "-",
            str(t.ggml) if t.ggml is not None else "-",
            f"`{t.numpy}`" if t.numpy else "-",
            proof(t, kernels.decodes(t), "reads"),
            proof(t, kernels.encodes(t), "writes"),
        )
        for t in BY_NAME.values()
    )
    yield from table(("type", "bits", "safetensors", "GGUF id", "NumPy", "decode", "encode"), rows)
    yield f"Tests: {links(all_tests(claims))}\n"


def models_part(claims: dict[str, Any]) -> Iterator[str]:
    from weighbridge.models.arch.registry import families
    from weighbridge.packings.schema.registry import schemas

    yield "## Model families\n"
    rows = [
        (f"`{f.name}`", ticked(f.architectures), ticked(f.dialects), links(claims["families"].get(f.name, ())))
        for f in families().values()
    ]
    yield from table(("family", "classes", "names", "proven by"), rows)
    yield "## Packings\n"
    yield "Several stored tensors that are one. ggml's block types are number types, see above.\n"
    names = {schema.packing: "" if schema.reader else " (counted, not decoded)" for schema in schemas()}
    rows = [(f"`{name}`{note}", links(claims["packings"].get(name, ()))) for name, note in names.items()]
    yield from table(("packing", "proven by"), rows)
    yield "## Tokenizers\n"
    rows = [(name, c["from"], links(c["tests"])) for name, c in claims["tokenizers"].items()]
    yield from table(("kind", "from", "proven by"), rows)
    yield "## Conversions\n"
    rows = [(name, c["types"], links(c["tests"])) for name, c in claims["conversions"].items()]
    yield from table(("conversion", "types", "proven by"), rows)


# --- rules.md -------------------------------------------------------------------------------------------------------


def rules() -> Iterator[str]:
    from weighbridge.containers import sharded
    from weighbridge.containers.formats import READ
    from weighbridge.containers.gguf.rules import RULES as GGUF
    from weighbridge.containers.safetensors.rules import RULES as SAFETENSORS
    from weighbridge.models.llamacpp import rules as llamacpp
    from weighbridge.models.mlxlm import rules as mlxlm
    from weighbridge.reports import lenient
    from weighbridge.reports.scan.model import RULES as SCAN
    from weighbridge.reports.verify import report as verify
    from weighbridge.reports.verify import values as verify_values

    yield "# Rules\n"
    yield NOTE
    yield (
        "The findings of `wb verify` and `wb scan`. An **error** violates the format or can't be loaded, a **warning** "
        "loads but is probably unintended (or is allowed, but the usual loader refuses it), **info** is unusual.\n"
    )
    yield "## GGUF\n"
    yield "`llama.cpp refuses`: at which stage; reading the header, the data, or building the model.\n"
    rows = [(f"`{name}`", str(r.severity), str(r.refused) or "-", r.text) for name, r in GGUF.items()]
    yield from table(("rule", "severity", "llama.cpp refuses", "what is wrong"), rows)
    yield "## llama.cpp\n"
    yield (
        "Whether llama.cpp (b11549) would load a GGUF as a model: `no` if it refuses, `open` if Weighbridge "
        "can't tell. No command writes a GGUF that breaks one of the errors here, unless its source does as well.\n"
    )
    yield from loader_table(llamacpp)
    yield "## mlx-lm\n"
    yield (
        "Whether mlx-lm (0.32) would load a folder in MLX's form: `no` if it refuses, `open` if Weighbridge "
        "can't tell. A plan of `wb convert --to mlx` lists what breaks one of these rules as a loss.\n"
    )
    yield from loader_table(mlxlm)
    yield "## Safetensors\n"
    yield (
        "Errors: files that the reference refuses; `README`: files that the format's README forbids "
        "and the reference takes.\n"
    )
    rows = [
        (f"`safetensors/{name}`", str(row.severity), "forbids" if row.spec else "-", row.text)
        for name, row in SAFETENSORS.items()
    ]
    yield from table(("rule", "severity", "README", "what is wrong"), rows)
    yield "## Sets of files, NumPy, ggml, distributed checkpoints, other frameworks\n"
    yield "`npz/checksum` with `--values` only: it takes every byte.\n"
    shown = ("gguf", "safetensors")
    tables = {f.name: getattr(f.functions, "RULES", {}) for f in READ if f.name not in shown}
    tables = {"sharded": sharded.RULES, **tables}
    others = {f"{of}/{name}": r for of, rules in tables.items() for name, r in rules.items()}
    yield from table(("rule", "severity", "what is wrong"), plain_rows(others))
    yield "## Files, folders, config, tokenizer\n"
    yield "`values/...` and `dcp/copies` only with `--values`.\n"
    ours = {r.id: Rule(r.severity, r.text) for r in verify.RULES}
    ours |= {r.id: Rule(r.severity, r.text) for r in (*verify_values.RULES, *verify.VALUE_RULES)}
    yield from table(("rule", "severity", "requirement"), plain_rows(ours))
    yield "## Scan\n"
    yield (
        "The findings of `wb scan`, and the verdict that each leads to (`data-only`: a note). No rule covers a text "
        "without a pickle's suffix that only imports a module whose name isn't an identifier (`my module`): CPython "
        "follows such an import, but prose looks the same ([coverage of a scan](scan-coverage.md)).\n"
    )
    yield from table(
        ("rule", "verdict", "description"), ((f"`{name}`", r.verdict.value, r.text) for name, r in SCAN.items())
    )
    yield "## Where reading ends\n"
    yield "Errors that nothing can be read beyond, as findings; FORMAT is `safetensors`, `gguf`, `npy` or `npz`.\n"
    yield from table(("rule", "severity", "what is wrong"), plain_rows(lenient.ENDS))


# --- family-schema.md -----------------------------------------------------------------------------------------------


def family_schema() -> Iterator[str]:
    from weighbridge.models.arch import rules as family_rules
    from weighbridge.models.arch.rules import common
    from weighbridge.models.arch.tables import expression, schema, short_forms

    yield "# Family tables\n"
    yield NOTE
    yield (
        "The contents of a family table: the sections and fields of its TOML, for the tables that come with "
        "Weighbridge, for those of plug-ins and for `--arch-file`. [Families](guide-families.md) is the guide.\n"
    )
    yield "## The table\n"
    yield from fields(schema.FamilyTable)
    yield "## Short forms\n"
    _, forms, note = (short_forms.__doc__ or "").split("\n\n")
    yield "A table may use short forms, which are expanded when it is read:\n"
    yield "```\n" + textwrap.dedent(forms) + "\n```\n"
    yield " ".join(note.split()) + "\n"
    yield "## Config rules\n"
    listed = {name: rule.__doc__ for name, rule in common.RULES.items()}
    for name in family_rules.OF_FAMILIES:
        (module,) = family_rules.family_rules([name])
        listed[name] = f"{(module.__doc__ or '').partition(': ')[0].rstrip('.')}. {module.complete.__doc__}"
    rows = ((f"`{name}`", " ".join((text or "").split())) for name, text in listed.items())
    yield from table(("rule", "keys that it adds to a config"), rows)
    for struct in schema.SECTIONS:
        heading, _, text = (struct.__doc__ or "").partition(": ")
        yield f"## {heading}\n"
        yield " ".join(text.split()).capitalize()[:1] + " ".join(text.split())[1:] + "\n"
        yield from fields(struct)
    yield "## Expressions\n"
    lines = (expression.__doc__ or "").split("\n\n")
    yield " ".join(lines[1].split()) + "\n"
    yield "```\n" + "\n".join(line.removeprefix("    ") for line in lines[2].split("\n")) + "\n```"


def fields(struct: Any) -> Iterator[str]:
    """A row for each field of a struct: its name, type and description."""
    hints = typing.get_type_hints(struct, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(struct):
        plain, *notes = typing.get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else (None,)
        text = next((note.description for note in notes if isinstance(note, msgspec.Meta)), None)
        if text is not None:
            rows.append((f"`{field.name}`", type_name(plain), "yes" if field.required else "", text))
    yield from table(("field", "type", "required", "meaning"), rows)


def type_name(kind: Any) -> str:
    """A type in words of TOML."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"table of {type_name(arguments[1])}"
    if arguments:
        return " or ".join(type_name(a) for a in arguments if a is not type(None))
    return {str: "text", bool: "flag", int: "number", float: "number", Any: "value"}.get(kind) or "entry"


def loader_table(module: Any) -> Iterator[str]:
    """A program's rules, and whether it loads what breaks them. `module`: RULES, REFUSED and OPEN."""
    loads = {**dict.fromkeys(module.REFUSED, "no"), **dict.fromkeys(module.OPEN, "open")}
    rows = [(f"`{name}`", str(r.severity), loads.get(name, "yes"), r.text) for name, r in module.RULES.items()]
    yield from table(("rule", "severity", "loads", "what is wrong"), rows)


def plain_rows(rules: Mapping[str, Rule]) -> Iterator[tuple[str, str, str]]:
    return ((f"`{name}`", str(r.severity), r.text) for name, r in rules.items())


def grade(there: bool, proof: Sequence[str] | None, word: str) -> str:
    return "-" if not there else "**proven**" if proof else word


def all_tests(claims: Any) -> list[str]:
    """Every test named anywhere in the claims."""
    if isinstance(claims, dict):
        return [test for value in claims.values() for test in all_tests(value)]
    return [x for x in claims if str(x).startswith("tests/")] if isinstance(claims, list) else []


def exists(test: str) -> bool:
    file, _, function = test.partition("::")
    path = ROOT / file
    if not path.is_file():
        return False
    names = {n.name for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)}
    return not function or function in names


def links(tests: Iterable[str]) -> str:
    files = dict.fromkeys(test.partition("::")[0] for test in sorted(tests))
    return ", ".join(f"[{Path(f).stem}](../{f})" for f in files)


# --- block types ----------------------------------------------------------------------------------------------------

STRUCTS = {"f16": "LeF16", "f32": "LeF32", "u16": "LeU16", "i16": "LeI16", "u32": "LeU32", "i8": "i8"}


def block_types() -> Iterator[str]:
    yield "# Block types\n"
    yield NOTE
    yield (
        "The bytes of one block of each ggml block type. Numbers are little-endian. The meaning of the codes is in\n"
        "the decoders in `tensors/reference/` and `native/kernels/`.\n"
    )
    for t in BY_NAME.values():
        if t.fields:
            yield f"## {t.name}\n"
            yield f"{t.block} elements in {t.size} bytes: {t.bits:g} bits each.\n"
            yield f"```\n{drawing(t)}\n```\n"
    yield "## Before GGUF\n"
    yield "Read in old files, never written ([formats-ggml](formats-ggml.md)).\n"
    yield from table(("type", "elements", "bytes", "fields"), old_rows())


def old_rows() -> Iterator[tuple[str, ...]]:
    for t in OLD.values():
        yield f"`{t.name}`", str(t.block), str(t.size), ", ".join(f"`{f.name}: {scalar(f)}`" for f in t.fields)


def scalar(field: Field) -> str:
    return field.scalar if field.count == 1 else f"{field.scalar}[{field.count}]"


def drawing(dtype: DType) -> str:
    """The fields of a block as a row of boxes under their offsets."""
    cells = [(f.name, scalar(f)) for f in dtype.fields]
    widths = [max(6, *(len(word) + 2 for word in cell)) for cell in cells]
    offsets = "".join(f" {f.offset:<{width}}" for f, width in zip(dtype.fields, widths, strict=True))
    line = "+" + "+".join("-" * width for width in widths) + "+"
    rows = ("|" + "|".join(f" {cell[k]:<{w - 1}}" for cell, w in zip(cells, widths, strict=True)) + "|" for k in (0, 1))
    return "\n".join((f"{offsets} {dtype.size}", line, *rows, line))


def block_structs() -> Iterator[str]:
    """The C++ structs of the types that have kernels."""
    yield "// The bytes of one block of each ggml block type, without padding. docs/block-types.md draws them."
    yield "// Made by docs/generate.py from base/dtypes.py: run `make docs`."
    yield '#pragma once\n\n#include "types.hpp"\n\nnamespace weighbridge {'
    for t in TABLE:
        if t.fields:
            yield from block_struct(t)
    yield "\n}  // namespace weighbridge"


def block_struct(dtype: DType) -> Iterator[str]:
    yield f"\nstruct {dtype.name} {{"
    yield f"  static constexpr size_t N = {dtype.block};  // elements"
    for f in dtype.fields:
        yield f"  {STRUCTS.get(f.scalar, 'u8')} {f.name}{'' if f.count == 1 else f'[{f.count}]'};"
    yield f"}};\nstatic_assert(sizeof({dtype.name}) == {dtype.size} && alignof({dtype.name}) == 1);"


# --- pages ----------------------------------------------------------------------------------------------------------


def ticked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- reference-classes.md -------------------------------------------------------------------------------------------

PAIR = "two files"


def reference_classes() -> Iterator[str]:
    from weighbridge.models.arch.registry import families
    from weighbridge.models.decision import decision_rows

    listed = tomllib.loads((DOCS / "reference-classes.toml").read_text("utf-8"))
    known: dict[str, list[tuple[Family, Architecture]]] = {}
    for family in families().values():
        for a in family.architectures.values():
            for name in (a.name, *a.aliases):
                known.setdefault(name, []).append((family, a))
    left = listed["absent"]
    states = {
        name: state_of_class(known[name]) if name in known else ("absent", left.get(name, ""))
        for name in listed["text"]
    }
    states |= {
        name: ("converts", f"that of its base model, as `{row.type}`")
        for name, row in decision_rows().items()
        if not row.in_table
    }
    states |= {name: (PAIR, how) for name, how in listed["apart"].items()}
    stated = {**listed["towers"], **{name: [whole] for name, whole in listed["same"].items()}}
    towers = classes_with_towers(stated)
    states |= {name: (PAIR, what) for name, (state, what) in states.items() if state == "partly" and name in towers}
    kinds = [state for state, _ in states.values()]
    yield "# Classes of Hugging Face models\n"
    yield NOTE
    yield (
        "Every class of a model that writes that the reference converter of llama.cpp "
        f"{listed['version']} registers, and what `wb convert` does with it: {kinds.count('converts')} of {len(kinds)} "
        f"convert whole, {kinds.count(PAIR)} as two files (the part that writes, and its towers by `--with-mmproj`), "
        f"{kinds.count('partly')} in part (the plan lists omitted parts), {kinds.count('absent')} are absent. "
        "Equality with the reference is tested family by family; [reference-differences.md](reference-differences.md) "
        "has the exceptions.\n"
    )
    rows = (
        (f"`{name}`", state, family) for name, (state, family) in sorted(states.items(), key=lambda r: r[0].lower())
    )
    yield from table(("class", "state", "family, or what it needs"), rows)
    yield from projector_classes(listed["other"], listed["left"], towers)
    yield from mlx_vlm_modules()
    own = sorted((n for n in known if n not in states), key=str.lower)
    yield "## Further classes\n"
    yield "The reference doesn't register these, or converts them by the class of their text model.\n"
    further = ((n, *state_of_class(known[n])) for n in own)
    rows = ((f"`{n}`", PAIR if state == "partly" and n in towers else state, what) for n, state, what in further)
    yield from table(("class", "state", "family"), rows)


def classes_with_towers(stated: Mapping[str, Sequence[str]]) -> dict[str, Family]:
    """The classes with towers that see or hear, and their tables. `stated`: classes that the reference registers in
    place of those of whole configs, and these."""
    from weighbridge.models.arch.registry import projectors

    classes = ((table, a) for table in projectors().values() for a in table.architectures.values())
    known = {name: table for table, a in classes for name in (a.name, *a.aliases)}
    return known | {tower: known[whole[0]] for tower, whole in stated.items()}


def projector_classes(registered: Sequence[str], left: Mapping[str, str], known: Mapping[str, Family]) -> Iterator[str]:
    """The classes with towers that see or hear, which `--mmproj` writes. `known`: their tables."""
    from weighbridge.models.arch.registry import projector_types

    written = [name for name in known if name in registered]
    yield "## Towers\n"
    yield (
        "Every class with towers that see or hear that the reference registers, and whether `wb convert --mmproj` "
        f"writes its mmproj file: {len(written)} of {len(registered)}.\n"
    )
    types = {name: ", ".join(f"`{kind}`" for kind in projector_types(table).values()) for name, table in known.items()}
    rows = (
        (f"`{name}`", "converts", types[name]) if name in types else (f"`{name}`", "absent", left[name])
        for name in sorted({*registered, *known}, key=lambda name: (name.lower(), name))
    )
    yield from table(("class", "state", "projector, or what it needs"), rows)


def mlx_vlm_modules() -> Iterator[str]:
    """The modules of mlx-vlm, and whether `--to mlx --towers` writes their models."""
    from weighbridge.models.mlxlm.towers import table as towers

    kinds: dict[str, list[str]] = {}
    for kind, row in towers().model.items():
        kinds.setdefault(row.module, []).append(kind)
    left = towers().without.values()
    yield "## MLX\n"
    yield (
        f"Every module of mlx-vlm 0.7.10, and whether `wb convert --to mlx --towers` writes its models: "
        f"{len(kinds)} of {len(kinds) + sum(len(group.modules) for group in left)}.\n"
    )
    rows = [(f"`{module}`", "converts", ticked(found)) for module, found in sorted(kinds.items())]
    rows += [(ticked(sorted(group.modules)), "absent", group.why) for group in left]
    yield from table(("module", "state", "model types, or why not"), rows)


def state_of_class(entries: Sequence[tuple[Family, Architecture]]) -> tuple[str, str]:
    """The state of a class, and its families."""
    # a model whose settings are in two objects is one
    whole = all(not architecture.part or architecture.outside for _, architecture in entries)
    return ("converts" if whole else "partly"), ticked(dict.fromkeys(family.name for family, _ in entries))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


# --- prove-faults.md ------------------------------------------------------------------------------------------------


def prove_faults() -> Iterator[str]:
    import json

    recorded = json.loads((ROOT / "tests" / "proof" / "golden" / "prove_faults.json").read_text("utf-8"))
    yield "# What `wb prove` finds\n"
    yield NOTE
    yield "Faults that the tests seed into a GGUF, and which checks find them ([guide](guide-prove.md)).\n"
    refused = "llama.cpp, which refuses the file"
    for kind, title in (("layout", "Tensors"), ("key", "Keys"), ("tokenizer", "Tokenizer")):
        yield f"## {title}\n"
        rows = recorded[kind].items()
        yield from table(
            ("fault", "in", "found by"), ((n, f["model"], ", ".join(f["found"]) or refused) for n, f in rows)
        )


# --- choosing.md ----------------------------------------------------------------------------------------------------


def choosing() -> Iterator[str]:
    from weighbridge.shipping.choice_table import rows
    from weighbridge.shipping.choice_table import table as choices

    rules = choices()
    yield "# Choosing a format\n"
    yield NOTE
    yield (
        "`wb choose` asks these questions, or takes them as options, and prints the commands. The rules below are the "
        "ones that it follows: of each table the first row that holds decides.\n"
    )
    yield "```\nwb choose\nwb choose ./my-model/ --purpose chat --runtime ollama --device rtx4090 --trusted\n```\n"
    yield "## Questions\n"
    answers = ((q.flag, q.text, ", ".join(f"`{a}`" for a in q.answers) or "a name or size") for q in rules.question)
    yield from table(("option", "question", "answers"), ((f"`{flag}`", text, words) for flag, text, words in answers))
    yield "## Formats\n"
    yield "`hf` is a folder of safetensors, `scheme` one with packed weights.\n"
    cited = ((words, f"`{r.gives}`", r.why, source_link(r.source)) for words, r in rows(rules.format))
    yield from table(("where", "format", "why", "source"), cited)
    yield "## Types\n"
    yield "With a model and a device, a GGUF's type is replaced by the best one that fits if it doesn't.\n"
    cited = ((words, f"`{r.gives}`" if r.gives else "-", r.why, source_link(r.source)) for words, r in rows(rules.type))
    yield from table(("where", "type", "why", "source"), cited)
    yield "## Errors in common tables\n"
    yield from table(("claim", "fact", "source"), ((c.claim, c.so, source_link(c.source)) for c in rules.correction))
    yield "More of these: [claims.md](claims.md).\n"


def source_link(source: str) -> str:
    """Returns a source as a link if it is one of our pages or tests; otherwise unchanged."""
    path, _, test = source.partition("::")
    if not (ROOT / path).is_file():
        return source
    target = Path(path).name if path.startswith("docs/") else f"../{path}"
    return f"[{test or Path(path).name}]({target})"


PAGES = {
    "prove-faults.md": prove_faults,
    "choosing.md": choosing,
    "api.md": api,
    "commands.md": commands,
    "supported.md": supported,
    "reference-classes.md": reference_classes,
    "rules.md": rules,
    "family-schema.md": family_schema,
    "block-types.md": block_types,
    "../native/block_types.hpp": block_structs,
    "../share/man/man1/wb.1": manual,
}


def main(arguments: Sequence[str]) -> int:
    stale = []
    for name, make in PAGES.items():
        text = "\n".join(make()).rstrip() + "\n"
        path = DOCS / name
        if not path.is_file() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, "utf-8")
    if "--check" in arguments and stale:
        sys.stdout.write(f"not up to date: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
