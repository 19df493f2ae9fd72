"""`wb edit`: read and change a file's metadata. The library plans and applies; this file reads what people type."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from weighbridge.base.errors import UsageError
from weighbridge.cli.options import applied, command, examples, json_option, option, refuse_others, size_option
from weighbridge.cli.paths import FILE, PATH
from weighbridge.cli.render import (
    Progress,
    clean,
    echo,
    emit_json,
    human_bytes,
    is_terminal,
    note,
    plural,
    short_float,
    table,
    warn,
)

if TYPE_CHECKING:
    from weighbridge.containers.gguf.values import KV
    from weighbridge.conversion.edit.plan import EditPlan
    from weighbridge.conversion.edit.values import Edit

_SHOWN = 60  # characters of a value in a table
# Options that change something, and those that say how; without one of the first, keys are only read.
_WHAT: Final = ("assigned", "arrays", "remove", "chat_template", "output")
_HOW: Final = ("overwrite", "rewrite", "backup", "force")


_OPTIONS: Final = (
    click.argument("file", type=PATH),
    option("--list", "show_all", is_flag=True, help="List all keys; what happens without another option."),
    option("--get", "wanted", metavar="KEY", multiple=True, help="Print the value of KEY."),
    option("--set", "assigned", metavar="KEY=[TYPE:]VALUE", multiple=True, help="Set KEY."),
    option("--set-array", "arrays", metavar="KEY=TYPE:[...]", multiple=True,
           help="Set KEY to an array (JSON, or @FILE)."),
    option("--remove", metavar="KEY", multiple=True, help="Remove KEY."),
    option("--chat-template", type=PATH, help="Set the chat template to the content of a file."),
    option("-o", "--output", type=FILE, help="Write the result there; leave FILE as it is."),
    option("--overwrite", is_flag=True, help="Replace the file named by --output."),
    option("--rewrite", is_flag=True, help="Write the file anew even where the edit fits in place."),
    size_option("--reserve", help="Write the file anew with room for later edits, such as 64k."),
    option("--backup", is_flag=True, help="Write the file anew and keep the old one as FILE.bak."),
    option("--force", is_flag=True, help="Change what is guarded: a key's type, a store's blob, structural keys."),
    option("--dry-run", is_flag=True, aliases=("-n",), help="Say what would change and write nothing."),
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
def edit(file: Path, wanted: tuple[str, ...], dry_run: bool, as_json: bool, **given: Any) -> int:
    """Read and change the metadata of FILE, a GGUF or a safetensors file.

    TYPE is a GGUF type (u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool str). Without it a key keeps the type it has, and a
    new key gets the one that fits its value. Safetensors metadata is text.

    The file is changed in place where the new header fits in the old one's room, and written anew otherwise; tensors
    are never touched.
    """
    from weighbridge.conversion.edit.apply import journal_of
    from weighbridge.conversion.edit.plan import read_metadata
    from weighbridge.io.location import check_local

    check_local(file)
    writes = {f"--{name.replace('_', '-')}": given[name] for name in _HOW}
    if not any(given[name] for name in _WHAT) and given["reserve"] is None:
        if wanted:
            refuse_others("--get", {"--list": given["show_all"]}, hint="give one of them")
        refuse_others("reading", {**writes, "--dry-run": dry_run}, hint="change something: --set KEY=VALUE")
        if journal_of(file).exists():
            warn("an edit of this file was interrupted; the next edit undoes it first")
        return _read(read_metadata(file), wanted, as_json)
    if wanted or given["show_all"]:
        raise UsageError("--get and --list can't be combined with a change", hint="run one after the other")
    if given["output"]:
        refuse_others(
            "--output", {"--rewrite": given["rewrite"], "--backup": given["backup"]}, hint="FILE stays as it is"
        )
    if given["overwrite"] and not given["output"]:
        raise UsageError("--overwrite replaces the file of --output", hint="without it FILE itself is changed")
    return _change(file, given, dry_run, as_json)


def _change(file: Path, given: dict[str, Any], dry_run: bool, as_json: bool) -> int:
    import weighbridge
    from weighbridge.conversion.edit.apply import recover
    from weighbridge.io.sink import check_target

    if not dry_run and given["output"]:
        check_target(given["output"], overwrite=given["overwrite"], folder=False)
    if not dry_run and recover(file):
        note("an interrupted edit has been undone")
    template = given["chat_template"].read_text("utf-8") if given["chat_template"] is not None else None
    options = {name: given[name] for name in ("remove", "output", *_HOW)}
    plan = weighbridge.plan_edit(
        file, set=list(_edits(given)), chat_template=template, reserve=given["reserve"] or 0, **options
    )
    if not dry_run:
        with Progress() as progress:
            plan.run(progress)
    emit_json(plan.describe() | {"written": not dry_run}) if as_json else _print_edit(plan, dry_run)
    return 0


def _edits(given: dict[str, Any]) -> Iterator[Edit]:
    from weighbridge.conversion.edit.values import parse_array, parse_assignment

    yield from (parse_assignment(text) for text in given["assigned"])
    yield from (parse_array(text, lambda name: Path(name).read_text("utf-8")) for text in given["arrays"])


def _print_edit(plan: EditPlan, dry_run: bool) -> None:
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
    return plural(len(kv.value), "element") if kv.type.startswith("arr[") else _short(kv)


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
