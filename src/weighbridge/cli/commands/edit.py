"""`wb edit`: reads and changes a file's metadata."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.base.options import flag
from weighbridge.base.words import plural
from weighbridge.cli.options import applied, command, dry_run_option, examples, json_option, option, refuse_others
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
from weighbridge.cli.values import FILE, PATH, parse_size

if TYPE_CHECKING:
    from weighbridge.containers.gguf.values import KV

_SHOWN = 60  # characters of a value in a table
# Options that change something, and those that control a change. Without one of the former, keys are only read.
_WHAT: Final = ("set", "set_array", "remove", "chat_template", "output")
_HOW: Final = ("overwrite", "rewrite", "backup", "allow_guarded")


_OPTIONS: Final = (
    click.argument("file", type=PATH),
    option("--list", is_flag=True, help="List all keys; the default."),
    option("--get", metavar="KEY", multiple=True, help="Print the value of KEY."),
    option("--set", metavar="KEY=[TYPE:]VALUE", multiple=True, help="Set KEY."),
    option("--set-array", metavar="KEY=TYPE:[...]", multiple=True,
           help="Set KEY to an array (JSON, or @FILE)."),
    option("--remove", metavar="KEY", multiple=True, help="Remove KEY."),
    option("--chat-template", type=PATH, help="Set the chat template to the content of a file."),
    option("-o", "--output", type=FILE, help="Write the result to another file and don't change FILE."),
    option("--overwrite", is_flag=True, help="Replace the file named by --output."),
    option("--rewrite", is_flag=True, help="Rewrite the file even if the edit fits in place."),
    option("--reserve", type=parse_size, metavar="SIZE",
           help="Rewrite the file with space for later edits, such as 64k."),
    option("--backup", is_flag=True, help="Rewrite the file and keep the old one as FILE.bak."),
    option("--allow-guarded", is_flag=True,
           help="Change protected things: a key's type, a store's blob, structural keys."),
    dry_run_option,
    json_option,
)  # fmt: skip


@command(
    epilog=examples(
        "wb edit model.gguf --list",
        "wb edit model.gguf --get tokenizer.chat_template",
        'wb edit model.gguf --set general.name="My model" --remove general.url',
        "wb edit model.gguf --set tokenizer.ggml.eos_token_id=u32:128009",
        'wb edit model.gguf --set-array \'general.tags=str:["chat","small"]\'',
        "wb edit model.gguf --chat-template template.jinja --dry-run",
        "wb edit model.safetensors --set license=mit --output licensed.safetensors",
    )
)
@applied(_OPTIONS)
def edit(file: Path, get: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Read and change the metadata of FILE, a GGUF or a safetensors file.

    TYPE is a GGUF type (u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str). Without it an existing key keeps its type, and
    a new key gets one that fits its value. Safetensors metadata is text.

    The file is changed in place if the new header fits into the space of the old one, and rewritten otherwise. Tensors
    never change.
    """
    import weighbridge
    from weighbridge.conversion.edit.apply import journal_of, recover
    from weighbridge.conversion.edit.plan import read_metadata
    from weighbridge.conversion.edit.values import parse_array, parse_assignment
    from weighbridge.io.location import check_local
    from weighbridge.io.sink import check_target

    check_local(file)
    writes = {flag(name): options[name] for name in _HOW}
    if not any(options[name] for name in _WHAT) and options["reserve"] is None:
        if get:
            refuse_others("--get", {"--list": options["list"]}, hint="give one of them")
        refuse_others("reading", {**writes, "--dry-run": dry_run}, hint="change something: --set KEY=VALUE")
        if journal_of(file).exists():
            warn("an edit of this file was interrupted; the next edit undoes it first")
        return _read(read_metadata(file), get, as_json)
    if get or options["list"]:
        raise UsageError("--get and --list can't be combined with a change", hint="run one after the other")
    if options["output"]:
        refuse_others(
            "--output", {"--rewrite": options["rewrite"], "--backup": options["backup"]}, hint="FILE doesn't change"
        )
    if options["overwrite"] and not options["output"]:
        raise UsageError("--overwrite replaces the file of --output", hint="without it FILE itself is changed")
    if not dry_run and options["output"]:
        check_target(options["output"], overwrite=options["overwrite"], folder=False)
    if not dry_run and recover(file):
        note("an interrupted edit has been undone")
    template = options.pop("chat_template")
    edits = [parse_assignment(text) for text in options.pop("set")]
    edits += [parse_array(text, lambda name: Path(name).read_text("utf-8")) for text in options.pop("set_array")]
    plan = weighbridge.plan_edit(
        file, set=edits, chat_template=template and template.read_text("utf-8"), reserve=options.pop("reserve") or 0,
        **{name: value for name, value in options.items() if name != "list"},
    )  # fmt: skip
    if not dry_run:
        with Progress() as progress:
            plan.run(progress)
    if as_json:
        emit_json(plan.describe() | {"written": not dry_run})
    else:
        for change in plan.changes:
            echo(f"{clean(change.key)}: {_short(change.before)} -> {_short(change.after)}")
        if not plan.changes:
            note("nothing changes")
        will = "would be " if dry_run else ""
        if plan.in_place:
            note(f"{will}changed in place: {human_bytes(plan.written)} written")
        else:
            note(f"{will}rewritten ({clean(plan.reason)}): {human_bytes(plan.written)} to {clean(plan.target)}")
    return 0


def _short(kv: KV | None) -> str:
    if kv is None:
        return "(none)"
    if kv.type.startswith("arr["):
        return f"{kv.type} of {len(kv.value):,}"
    text = clean(_scalar(kv))
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text


def _read(metadata: Mapping[str, KV], keys: tuple[str, ...], as_json: bool) -> int:
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
