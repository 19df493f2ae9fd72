"""The group of commands, and the one boundary where an error becomes words and an exit code.

`wb --help` is printed from `COMMANDS` below: no command is imported until it runs, so start-up stays under 0.1 s.

Exit codes: 0 fine; 1 a finding, a difference, a mismatch; 2 usage or trouble (unreadable, malformed, unsupported,
refused); 70 a fault of Weighbridge itself; 130 interrupted; 141 the reader of our output went away; 143 terminated.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import click

from weighbridge import __version__
from weighbridge.base.errors import LeftoverWarning, WeighbridgeError
from weighbridge.cli.render import SCREEN, clean, echo, os_words, print_error, warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FINDING, TROUBLE, FAULT, INTERRUPTED, NO_READER, TERMINATED = 1, 2, 70, 130, 141, 143


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: its name, its line in the help, where its code is, what else people type for it."""

    name: str
    help: str
    section: str
    aliases: tuple[str, ...] = ()
    module: str = ""  # under cli/commands; the command's own name if empty


_LOOK, _CHANGE, _OTHER = "Look", "Change", "Other"
COMMANDS: Final = (
    Verb("identify", "Say what a file is, by its content.", _LOOK, ("file", "what")),
    Verb("inspect", "Show what is inside: model, tensors, metadata.", _LOOK, ("info", "show", "stat", "tree")),
    Verb("view", "Look at a model, or at two, in a browser.", _LOOK, ("browse", "page")),
    Verb("ls", "List the models of this machine.", _LOOK, ("list", "models")),
    Verb("du", "Show where the disk went: stores, duplicates, leftovers.", _LOOK),
    Verb("anatomy", "Name every byte of a file: annotated hexdump and layout map.", _LOOK, ("hexdump", "layout")),
    Verb("explain", "Tell what a pickle would make Python do, step by step.", _LOOK, ("disassemble", "dis")),
    Verb("get", "Take one tensor out, or print its statistics.", _LOOK, ("extract", "dump")),
    Verb("stats", "Compute statistics of a tensor's values, or of every layer's.", _LOOK, ("histogram", "values")),
    Verb("verify", "Check a file or a model for everything that can be wrong.", _LOOK, ("check", "doctor", "validate")),
    Verb("diff", "Compare two models in any form: names, bytes, values.", _LOOK, ("compare",)),
    Verb("prove", "Check whether a model is the same in another form.", _LOOK, ("same", "equal")),
    Verb("arch", "Model families: their tables, and how a model fits them.", _LOOK, ("family", "families")),
    Verb("scan", "Say what a file would do when it is loaded: code, tricks, traps.", _LOOK, ("audit",)),
    Verb("fit", "Say whether a model fits on a device, and which type to choose.", _LOOK, ("memory", "vram")),
    Verb("choose", "Choose a format, a type and the commands, by five questions.", _LOOK, ("advise", "recommend")),
    Verb("hash", "Digests of files and tensors, written and checked.", _LOOK, ("sha256sum", "checksum", "digest")),
    Verb("convert", "Convert between formats and number types; reshard.", _CHANGE, ("cast", "reshard")),
    Verb("quantize", "Quantize to any ggml type, as llama-quantize does.", _CHANGE, ("quant",)),
    Verb("plan", "Say what a conversion would do, without doing it.", _CHANGE, (), "convert"),
    Verb("split", "Split a model into shards.", _CHANGE, ("shard",)),
    Verb("merge", "Merge shards into one file.", _CHANGE, ("cat", "join")),
    Verb("strip", "Take the weights out of a training checkpoint.", _CHANGE, ("prune",)),
    Verb("rename", "Give tensors other names: prefixes, patterns, another dialect's.", _CHANGE, ("mv",)),
    Verb("slice", "Take some layers, experts or tensors of a model.", _CHANGE, ("cut", "trim")),
    Verb("fetch", "Fetch files from elsewhere, resumed and verified.", _CHANGE, ("download", "pull")),
    Verb("dedupe", "Let files of the same bytes share their space.", _CHANGE),
    Verb("edit", "Read and change metadata: keys, arrays, the chat template.", _CHANGE, ("meta", "metadata")),
    Verb("ship", "Hand a model to Ollama, LM Studio, a server, the Hub.", _CHANGE, ("deploy", "publish", "push")),
    Verb("fleet", "Scan, hash, verify, convert or quantize many models.", _OTHER),
    Verb("serve", "Serve models over HTTP, in forms made on the way.", _OTHER),
    Verb("mount", "Mount a model in forms made where they are read.", _OTHER),
    Verb("completion", "Print the completion script of a shell.", _OTHER),
)
BY_NAME: Final = MappingProxyType({name: row for row in COMMANDS for name in (row.name, *row.aliases)})


def load(row: Verb) -> click.Command:
    """Import the command of a row, and give it the options that every command has."""
    module = import_module(f"weighbridge.cli.commands.{row.module or row.name}")
    command = cast(click.Command, getattr(module, row.name))
    command.name, command.short_help = row.name, row.help
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        _add_common(one)
    return command


def _add_common(command: click.Command) -> None:
    """The options of every command, under the names that this one leaves free."""
    have = {option for param in command.params for option in param.opts}
    for common in common_options():
        common.opts = [name for name in common.opts if name not in have]
        command.params += [common] if common.opts and not have & {common.opts[-1]} else []


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value and name == "offline":
            os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub's own switch, which ours is, too
        elif value:  # one that isn't given on this side of the command may be given on the other
            setattr(SCREEN, name, value)

    return callback


def common_options() -> list[click.Option]:
    """The options that stand before the command or after it, as one likes."""
    kinds: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
        (("-q", "--quiet"), {"is_flag": True, "help": "Say nothing but the answer and errors."}, "quiet"),
        (("-v", "--verbose"), {"count": True, "help": "Say more; twice for most."}, "verbose"),
        (("--color",), {"type": click.Choice(["auto", "always", "never"]), "help": "Colours [auto]."}, "color"),
        (
            ("--offline",),
            {"is_flag": True, "help": "Make no connection: what is remote is read from the local cache."},
            "offline",
        ),
        (("--debug",), {"is_flag": True, "help": "Show the traceback of an error."}, "debug"),
    )
    return [
        click.Option(list(names), expose_value=False, is_eager=True, callback=_set(field), **settings)
        for names, settings, field in kinds
    ]


class LazyGroup(click.Group):
    """A group that knows its commands from `COMMANDS` and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [row.name for row in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = BY_NAME.get(cmd_name)
        return load(row) if row else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [CompletionItem(row.name, help=row.help) for row in COMMANDS if row.name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in ("help", "version"):  # `wb help convert` is `wb convert --help`
            args = [*args[1:], "--help"] if args[0] == "help" else ["--version"]
            if args[0] not in BY_NAME:
                with self.make_context(ctx.info_name, args):
                    ctx.exit()
        if args and args[0] not in BY_NAME and not args[0].startswith("-"):
            ctx.fail(_unknown(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(row.section for row in COMMANDS):
            with formatter.section(section):
                formatter.write_dl([(r.name, r.help) for r in COMMANDS if r.section == section], col_max=12)


def _unknown(word: str) -> str:
    """What to say to a word that is no command: it may be a file, or a slip of the fingers."""
    if os.path.exists(word) or "/" in word or "." in word:
        return f"no command is called {word!r}. To look into that file: wb inspect {word}"
    from weighbridge.cli.habits import WORDS

    if word in WORDS:
        return f"no command is called {word!r}: {WORDS[word]}"
    from difflib import get_close_matches

    near = get_close_matches(word, BY_NAME, 1)
    return f"no command is called {word!r}." + (
        f" Did you mean {BY_NAME[near[0]].name!r}?" if near else " See wb --help."
    )


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        echo(f"weighbridge {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """One tool for files of model weights: see what they are, check them, convert them.

    A PATH is a file, a folder with a model, or one of a set of shards. Nothing in a file is ever executed.
    """


cli.params += common_options()
cli.epilog = (
    "\b\nExamples:\n"
    "  wb inspect model.gguf\n"
    "  wb verify ./my-model/\n"
    "  wb convert ./my-model/ my-model.gguf --dtype q8_0\n\n"
    "wb COMMAND --help tells more about a command."
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry point: the exit code, whatever happens."""
    SCREEN.__init__()  # type: ignore[misc]  # a second run in one process starts afresh
    with _buffered_stdout():
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a file's name that the terminal can't encode must not end the work
                stream.reconfigure(errors="backslashreplace")
        _handle_signals()
        try:
            code = _invoke(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return _no_reader()
        except BaseException as error:  # the boundary: whatever it is becomes words and a code
            code = _explain(error)
            for line in getattr(error, "__notes__", ()):  # what became of the work done so far
                print_error("", line)
            return code


@contextmanager
def _buffered_stdout() -> Iterator[None]:
    """With PYTHONUNBUFFERED the text layer drops what a full disk doesn't take; a buffer in between reports it."""
    plain = sys.stdout
    raw = getattr(plain, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        yield
        return
    sys.stdout = text = io.TextIOWrapper(io.BufferedWriter(raw), encoding=plain.encoding, write_through=True)
    try:
        yield
    finally:
        sys.stdout = plain
        with suppress(OSError):  # reported when it was written
            text.detach().detach()


def _invoke(args: list[str]) -> int:
    name = _program()
    if instruction := os.environ.get("_WB_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, name, "_WB_COMPLETE", instruction)
    try:
        with _shown_warnings(), cli.make_context(name, args) as ctx:
            result = cli.invoke(ctx)
            return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code


@contextmanager
def _shown_warnings() -> Iterator[None]:
    """Leftovers are shown as every other warning of the commands; other packages' warnings as Python shows them."""
    plain = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *more: Any) -> None:
        if issubclass(category, LeftoverWarning):
            warn(clean(str(message)))
        else:
            plain(message, category, *more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", LeftoverWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # the rest of its arguments goes on as it is
        yield


def _program() -> str:
    """How we were called, for the usage lines: `wb`, `weighbridge`, or `hf weighbridge` as a plug-in of `hf`."""
    called = PurePath(sys.argv[0]).stem
    return {"weighbridge": "weighbridge", "hf-weighbridge": "hf weighbridge"}.get(called, "wb")


def _explain(error: BaseException) -> int:
    """Say what went wrong; the exit code. Anything that isn't foreseen is our fault and says so."""
    if SCREEN.debug or os.environ.get("WEIGHBRIDGE_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    match error:
        case WeighbridgeError():
            print_error(error.message, error.hint)
            return TROUBLE
        case click.ClickException():
            return _usage(error)
        case KeyboardInterrupt() | click.Abort():
            print_error("interrupted")
            return INTERRUPTED
        case SystemExit():
            return error.code if isinstance(error.code, int) else TROUBLE
        case OSError():
            from weighbridge.cli.habits import next_step

            print_error(_os_words(error), _NEXT_STEPS.get(error.errno or 0) or next_step(error))
            return TROUBLE
        case MemoryError():
            print_error("out of memory", "give it less to hold at once: --max-memory, -j 1")
            return TROUBLE
    return _fault(error)


def _usage(error: click.ClickException) -> int:
    hint = None
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # the help itself
        return TROUBLE
    if isinstance(error, click.UsageError) and error.ctx is not None:
        sys.stderr.write(error.ctx.get_usage() + "\n")
        from weighbridge.cli.habits import advice

        hint = advice(error) or f"{error.ctx.command_path} --help"
    print_error(error.format_message(), hint)
    return TROUBLE


_NEXT_STEPS: Final = {
    errno.ENOSPC: "free some space, or choose a target on another disk",
    errno.EDQUOT: "free some space, or choose a target on another disk",
    errno.EFBIG: "the file system (or a limit) holds no file so large: write shards, --max-shard-size 4GB",
}


def _os_words(error: OSError) -> str:
    """What the operating system says, after the path it is about."""
    words = os_words(error)
    paths = [os.fsdecode(p) for p in (error.filename, error.filename2) if isinstance(p, (str, bytes, os.PathLike))]
    return f"{' -> '.join(paths)}: {words}" if paths else words


def _fault(error: BaseException) -> int:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {PurePath(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
    print_error(
        f"this is a fault of weighbridge {__version__}: {type(error).__name__}: {error}{place}",
        "run the same command with --debug and report what it prints, with the file's `wb identify --json`",
    )
    return FAULT


def _no_reader() -> int:
    """`wb ... | head`: the reader has what it wanted. Python must not complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return NO_READER


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _handle_signals() -> None:
    """A polite end (SIGTERM, SIGHUP) unwinds like an error does, so that no half-written file is left behind."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        try:
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _terminate)
        except ValueError:  # not the main thread (a test, an embedding): its owner handles signals
            return
