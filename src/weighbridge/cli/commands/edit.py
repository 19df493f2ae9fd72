"""`wb edit`: reads and changes a file's metadata."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.cli.options import DryRunOptions, command, examples, refuse_others
from weighbridge.cli.render import (
    Progress,
    clean,
    echo,
    emit_json,
    human_bytes,
    is_terminal,
    note,
    short_float,
    table,
    warn,
)
from weighbridge.cli.values import PATH
from weighbridge.conversion.edit.options import EditOptions
from weighbridge.conversion.edit.values import Edit

if TYPE_CHECKING:
    from weighbridge.containers.gguf.values import KV
    from weighbridge.conversion.edit.apply import EditPlan

_SHOWN = 60  # characters of a value in a table
# Options that change something, and those that control a change. Without one of the former, keys are only read.
_WHAT: Final = ("set", "set_array", "remove", "chat_template", "output", "reserve")
_HOW: Final = ("overwrite", "rewrite", "backup", "allow_guarded", "dry_run")


@dataclass(frozen=True, kw_only=True)
class EditCommand(EditOptions, DryRunOptions):
    list: bool = option("List all keys; the default.", False)
    get: Sequence[str] = option("Print the value of KEY.", (), metavar="KEY")
    set_array: Sequence[Edit] = option(
        "Set KEY to an array (JSON, or @FILE).", (), metavar="KEY=TYPE:[...]", kind="array"
    )


@command(
    EditCommand,
    epilog=examples(
        "wb edit model.gguf --list",
        "wb edit model.gguf --get tokenizer.chat_template",
        'wb edit model.gguf --set general.name="My model" --remove general.url',
        "wb edit model.gguf --set tokenizer.ggml.eos_token_id=u32:128009",
        'wb edit model.gguf --set-array \'general.tags=str:["chat","small"]\'',
        "wb edit model.gguf --chat-template template.jinja --dry-run",
        "wb edit model.safetensors --set license=mit --output licensed.safetensors",
    ),
)
@click.argument("file", type=PATH)
def edit(file: Path, options: EditCommand) -> int:
    """Read and change the metadata of FILE, a GGUF or a safetensors file.

    TYPE is a GGUF type (u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str, or arr[TYPE]). Without it an existing key
    keeps its type, and a new key gets one that fits its value. Safetensors metadata is text.

    The file is changed in place if the new header fits into the space of the old one, and rewritten otherwise. Tensors
    never change.
    """
    import weighbridge
    from weighbridge.conversion.edit.apply import journal_of, recover
    from weighbridge.conversion.edit.plan import read_metadata
    from weighbridge.io.location import check_local
    from weighbridge.io.sink import check_target

    check_local(file)
    if not {*_WHAT} & {*options.given}:
        if options.get:
            refuse_others("--get", options, ("list",), hint="give one of them")
        refuse_others("reading", options, _HOW, hint="change something: --set KEY=VALUE")
        if journal_of(file).exists():
            warn("an edit of this file was interrupted; the next edit undoes it first")
        return _read(read_metadata(file), options.get, options.json)
    if options.get or options.list:
        raise UsageError("--get and --list can't be combined with a change", hint="run one after the other")
    if options.output:
        refuse_others("--output", options, ("rewrite", "backup"), hint="FILE doesn't change")
    elif options.overwrite:
        raise UsageError("--overwrite replaces the file of --output", hint="without it FILE itself is changed")
    if not options.dry_run and options.output:
        check_target(options.output, overwrite=options.overwrite, folder=False)
    if not options.dry_run and recover(file):
        note("an interrupted edit has been undone")
    keywords = options.keywords(weighbridge.plan_edit) | {"set": (*options.set, *options.set_array)}
    if options.chat_template is not None:
        keywords["chat_template"] = Path(options.chat_template).read_text("utf-8")
    plan = weighbridge.plan_edit(file, **keywords)
    if not options.dry_run:
        with Progress() as progress:
            plan.run(progress)
    emit_json(plan.describe() | {"written": not options.dry_run}) if options.json else _print_edit(
        plan, options.dry_run
    )
    return 0


def _print_edit(plan: EditPlan, dry_run: bool) -> None:
    for change in plan.changes:
        echo(f"{clean(change.key)}: {_short(change.before)} -> {_short(change.after)}")
    if not plan.changes:
        note("nothing changes")
    will = "would be " if dry_run else ""
    if plan.in_place:
        note(f"{will}changed in place: {human_bytes(plan.written)} written")
    else:
        note(f"{will}rewritten ({clean(plan.reason)}): {human_bytes(plan.written)} to {clean(plan.target)}")


def _short(kv: KV | None) -> str:
    if kv is None:
        return "(none)"
    if kv.type.startswith("arr["):
        return f"{kv.type} of {len(kv.value):,}"
    text = clean(_scalar(kv))
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text


def _read(metadata: Mapping[str, KV], keys: Sequence[str], as_json: bool) -> int:
    """Prints the values of `keys`, unescaped if a program reads them; without keys, a table of all."""
    missing = [key for key in keys if key not in metadata]
    if missing:
        raise UsageError(f"there is no key {missing[0]!r}", hint="see them with --list")
    if as_json:
        emit_json({key: metadata[key]._asdict() for key in keys or metadata})
    elif not keys:
        values = [
            plural(len(kv.value), "element") if kv.type.startswith("arr[") else _short(kv) for kv in metadata.values()
        ]
        rows = [(key, kv.type, value) for (key, kv), value in zip(metadata.items(), values, strict=True)]
        table(["key", "type", "value"], rows)
    for kv in () if as_json else map(metadata.__getitem__, keys):
        if kv.type.startswith("arr["):
            import json

            echo(json.dumps(list(kv.value), ensure_ascii=False))
        else:
            echo(clean(_scalar(kv), keep="\n\t") if is_terminal(sys.stdout) else _scalar(kv))
    return 0


def _scalar(kv: KV) -> str:
    if kv.type == "bool":
        return "true" if kv.value else "false"
    return short_float(kv.value) if kv.type == "f32" else str(kv.value)
