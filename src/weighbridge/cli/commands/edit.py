"""`wb edit`: read and change a file's metadata. The library plans and applies; this file reads what people type."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import examples, json_option, size_option
from weighbridge.cli.render import (
    Progress,
    clean,
    counted,
    echo,
    emit_json,
    human_bytes,
    is_terminal,
    note,
    short_float,
    table,
    warn,
)

if TYPE_CHECKING:
    from weighbridge.containers.gguf.values import KV
    from weighbridge.conversion.edit.plan import Edit, EditPlan

_SHOWN = 60  # characters of a value in a table
_PATH = click.Path(path_type=Path)


@click.command(
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
@click.argument("file", type=_PATH)
@click.option("--list", "show_all", is_flag=True, help="List all keys; what happens without another option.")
@click.option("--get", "wanted", metavar="KEY", multiple=True, help="Print the value of KEY.")
@click.option("--set", "assigned", metavar="KEY=[TYPE:]VALUE", multiple=True, help="Set KEY.")
@click.option(
    "--set-array", "arrays", metavar="KEY=TYPE:[...]", multiple=True, help="Set KEY to an array (JSON, or @FILE)."
)
@click.option("--remove", "removed", metavar="KEY", multiple=True, help="Remove KEY.")
@click.option("--chat-template", "template", type=_PATH, help="Set the chat template to the content of a file.")
@click.option("-o", "--output", type=_PATH, help="Write the result there; leave FILE as it is.")
@click.option("--overwrite", is_flag=True, help="Replace the file named by --output.")
@click.option("--rewrite", is_flag=True, help="Write the file anew even where the edit fits in place.")
@size_option("--reserve", help="Write the file anew with room for later edits, such as 64k.")
@click.option("--backup", is_flag=True, help="Write the file anew and keep the old one as FILE.bak.")
@click.option("--force", is_flag=True, help="Change what is guarded: a key's type, a store's blob, structural keys.")
@click.option("--dry-run", is_flag=True, help="Say what would change and write nothing.")
@json_option
def command(file: Path, wanted: tuple[str, ...], dry_run: bool, as_json: bool, **given: Any) -> int:
    """Read and change the metadata of FILE, a GGUF or a safetensors file.

    TYPE is a GGUF type (u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str). Without it a key keeps the type it has, and a
    new key gets the one that fits its value. Safetensors metadata is text.

    The file is changed in place where the new header fits in the old one's room, and written anew otherwise; tensors
    are never touched.
    """
    from weighbridge.conversion.edit.plan import journal_of, read_metadata, recover

    edits = list(_edits(given))
    if not edits and not given["output"] and given["reserve"] is None:
        if journal_of(file).exists():
            warn("an edit of this file was cut off; the next one undoes it first")
        return _read(read_metadata(file), wanted, as_json)
    if wanted or given["show_all"]:
        raise UsageError("--get and --list go with no change", hint="run the two after each other")
    if not dry_run and recover(file):
        note("an edit that was cut off has been undone")
    return _change(file, edits, dry_run, as_json, given)


def _edits(given: dict[str, Any]) -> Iterator[Edit]:
    from weighbridge.conversion.edit.plan import CHAT_TEMPLATE, Edit, parse_array, parse_assignment

    yield from (Edit(key, remove=True) for key in given["removed"])
    yield from (parse_assignment(text) for text in given["assigned"])
    yield from (parse_array(text, lambda name: Path(name).read_text("utf-8")) for text in given["arrays"])
    if given["template"] is not None:
        yield Edit(CHAT_TEMPLATE, given["template"].read_text("utf-8"), "str")


def _change(file: Path, edits: list[Edit], dry_run: bool, as_json: bool, given: dict[str, Any]) -> int:
    from weighbridge.conversion.edit.plan import apply_edit, plan_edit

    plan = plan_edit(
        file,
        edits,
        output=given["output"],
        force=given["force"],
        rewrite=given["rewrite"] or given["backup"],
        reserve=given["reserve"] or 0,
    )
    if not dry_run:
        with Progress() as progress:
            apply_edit(plan, backup=given["backup"], overwrite=given["overwrite"], progress=progress)
    if as_json:
        emit_json(plan.describe() | {"written": not dry_run})
    else:
        _tell(plan, dry_run)
    return 0


def _tell(plan: EditPlan, dry_run: bool) -> None:
    for change in plan.changes:
        echo(f"{clean(change.key)}: {_short(change.before)} -> {_short(change.after)}")
    if not plan.changes:
        note("nothing changes")
    will = "would be " if dry_run else ""
    if plan.in_place:
        note(f"{will}changed in place: {human_bytes(plan.written)} written")
    else:
        note(f"{will}written anew ({clean(plan.reason)}): {human_bytes(plan.written)} to {clean(plan.target)}")


def _listed(kv: KV) -> str:
    """A value beside its type."""
    return counted(len(kv.value), "element") if kv.type.startswith("arr[") else _short(kv)


def _short(kv: KV | None) -> str:
    if kv is None:
        return "(none)"
    if kv.type.startswith("arr["):
        return f"{kv.type} of {len(kv.value):,}"
    text = clean(_scalar(kv))
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text


def _read(metadata: Mapping[str, KV], wanted: tuple[str, ...], as_json: bool) -> int:
    """`--get`: the values alone, as they are where a program reads them. Otherwise a table of all keys."""
    missing = [key for key in wanted if key not in metadata]
    if missing:
        raise UsageError(f"there is no key {missing[0]!r}", hint="see them with --list")
    if as_json:
        chosen = wanted or metadata
        emit_json({key: metadata[key]._asdict() for key in chosen})
    elif not wanted:
        table(["key", "type", "value"], [(key, kv.type, _listed(kv)) for key, kv in metadata.items()])
    for key in wanted if not as_json else ():
        echo(_whole(metadata[key]))
    return 0


def _whole(kv: KV) -> str:
    if kv.type.startswith("arr["):
        import json

        return json.dumps(list(kv.value), ensure_ascii=False)
    text = _scalar(kv)
    return clean(text, keep="\n\t") if is_terminal(sys.stdout) else text


def _scalar(kv: KV) -> str:
    if kv.type == "bool":
        return "true" if kv.value else "false"
    return short_float(kv.value) if kv.type == "f32" else str(kv.value)
