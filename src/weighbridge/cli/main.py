"""The group of commands, and the only place that turns an error into text and an exit code.

`wb --help` is printed from `COMMANDS` below: a command is imported when it runs, so start-up stays under 0.1 s.

Exit codes: 0 fine; 1 a finding, a difference, a mismatch; 2 usage or trouble (unreadable, malformed, unsupported,
refused); 70 a bug in Weighbridge; 130 interrupted; 141 the reader of our output closed it; 143 terminated.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import PurePath
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import click

from weighbridge import __version__
from weighbridge.base.errors import LeftoverWarning, WeighbridgeError
from weighbridge.base.options import option
from weighbridge.base.records import dataclass
from weighbridge.cli.options import click_options
from weighbridge.cli.render import SCREEN, clean, echo, os_words, print_error, warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FINDING, TROUBLE, FAULT, INTERRUPTED, NO_READER, TERMINATED = 1, 2, 70, 130, 141, 143


@dataclass(frozen=True, slots=True)
class Verb:
    """A command. `help`: its line in the help. `aliases`: other names that people type."""

    name: str
    help: str
    section: str
    aliases: tuple[str, ...] = ()
    module: str = ""  # under cli/commands; the command's own name if empty


_LOOK, _CHANGE, _OTHER = "Look", "Change", "Other"
COMMANDS: Final = (
    Verb("identify", "Identify a file by its content.", _LOOK, ("file", "what")),
    Verb("inspect", "Show the contents: model, tensors, metadata.", _LOOK, ("info", "show", "stat", "tree")),
    Verb("view", "View one model or two in a browser.", _LOOK, ("browse", "page")),
    Verb("ls", "List the models of this machine.", _LOOK, ("list", "models")),
    Verb("du", "Show disk usage: stores, duplicates, leftovers.", _LOOK),
    Verb("anatomy", "Name every byte of a file: annotated hexdump and layout map.", _LOOK, ("hexdump", "layout")),
    Verb("explain", "List what a pickle would make Python do, step by step.", _LOOK, ("disassemble", "dis")),
    Verb("get", "Extract one tensor, or print its statistics.", _LOOK, ("extract", "dump")),
    Verb("stats", "Compute statistics of a tensor's values, or of every layer's.", _LOOK, ("histogram", "values")),
    Verb("verify", "Check a file or a model for every known problem.", _LOOK, ("check", "doctor", "validate")),
    Verb("diff", "Compare two models in any form: names, bytes, values.", _LOOK, ("compare",)),
    Verb("prove", "Check whether a model is the same in another form.", _LOOK, ("same", "equal")),
    Verb("lineage", "Find out how models are related, and which one is the parent.", _LOOK, ("ancestry", "origin")),
    Verb("quality", "Compare what two models predict on a text: KL, perplexity.", _LOOK, ("perplexity", "ppl", "kld")),
    Verb("arch", "Model families: their tables, and how a model fits them.", _LOOK, ("family", "families")),
    Verb("scan", "Report what loading a file would do: code, tricks, traps.", _LOOK, ("audit",)),
    Verb("fit", "Check whether a model fits on a device, and which type to choose.", _LOOK, ("memory", "vram")),
    Verb("choose", "Choose a format, a type and the commands, by five questions.", _LOOK, ("advise", "recommend")),
    Verb("hash", "Compute and check digests of files and tensors.", _LOOK, ("sha256sum", "checksum", "digest")),
    Verb("sbom", "Write a bill of materials: licences, base models, digests.", _LOOK, ("bom", "aibom")),
    Verb("sign", "Sign a model: a key, a certificate or your identity.", _CHANGE),
    Verb("convert", "Convert between formats and number types; reshard.", _CHANGE, ("cast", "reshard")),
    Verb("quantize", "Quantize to any ggml type, as llama-quantize does.", _CHANGE, ("quant",)),
    Verb("imatrix", "Make an importance matrix: what enters each matrix on a text.", _CHANGE, ("calibrate",)),
    Verb("plan", "Show what a conversion would do, without writing.", _CHANGE, (), "convert"),
    Verb("split", "Split a model into shards.", _CHANGE, ("shard",)),
    Verb("merge", "Merge models, adapters, or the shards of one model.", _CHANGE, ("cat", "join")),
    Verb("extract-lora", "Extract a LoRA adapter from a base and a tuned model.", _CHANGE),
    Verb("strip", "Extract the weights of a training checkpoint.", _CHANGE, ("prune",)),
    Verb("rename", "Rename tensors: prefixes, patterns, another dialect's names.", _CHANGE, ("mv",)),
    Verb("slice", "Extract layers, experts or tensors of a model.", _CHANGE, ("cut", "trim")),
    Verb("fetch", "Fetch remote files; resumes and verifies.", _CHANGE, ("download", "pull")),
    Verb("pack", "Pack weights without loss, alone or as a delta to a base.", _CHANGE, ("compress", "zip")),
    Verb("unpack", "Restore the original bytes of packed weights.", _CHANGE, ("decompress", "unzip")),
    Verb("dedupe", "Let identical files share their disk space.", _CHANGE),
    Verb("edit", "Read and change metadata: keys, arrays, the chat template.", _CHANGE, ("meta", "metadata")),
    Verb("ship", "Hand a model to Ollama, LM Studio, a server, the Hub.", _CHANGE, ("deploy", "publish", "push")),
    Verb("fleet", "Scan, hash, verify, convert, quantize or merge many models.", _OTHER),
    Verb("serve", "Serve models over HTTP, converted on the fly.", _OTHER),
    Verb("mount", "Mount a model in other forms, converted on the fly.", _OTHER),
    Verb("completion", "Print the completion script of a shell.", _OTHER),
)
BY_NAME: Final = MappingProxyType({name: row for row in COMMANDS for name in (row.name, *row.aliases)})


def load(row: Verb) -> click.Command:
    """Imports the command of a row and adds the options that every command has."""
    name = row.name.replace("-", "_")
    module = import_module(f"weighbridge.cli.commands.{row.module or name}")
    command = cast(click.Command, getattr(module, name))
    command.name, command.short_help = row.name, row.help
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        taken = {name for param in one.params for name in param.opts}
        for common in common_options():
            common.opts = [name for name in common.opts if name not in taken]
            one.params += [common] if common.opts and common.opts[-1] not in taken else []
    return command


def _set_screen(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Sets the option on `SCREEN`. One given on the other side of the command stays."""
    if value and param.name == "offline":
        os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub's switch is also ours
    elif value:
        setattr(SCREEN, str(param.name), value)


@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """The options that may be given before or after the command."""

    quiet: bool = option("Print only the answer and errors.", False, letter="q")
    verbose: int = option("Print more; twice for most.", 0, letter="v", kind="count")
    color: str | None = option("Colours [auto].", choices=("auto", "always", "never"))
    offline: bool = option("Don't connect: read remote files from the local cache.", False)
    debug: bool = option("Show the traceback of an error.", False)


def common_options() -> list[click.Option]:
    """The options of every command, which set `SCREEN`."""
    return click_options(
        ScreenOptions, section="Global options", expose_value=False, is_eager=True, callback=_set_screen
    )


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
        if args[:1] == ["help"] and args[1:] and args[1] not in BY_NAME and not args[1].startswith("-"):
            from weighbridge.cli import guides

            guides.show(args[1])
            ctx.exit()
        if args and args[0] in ("help", "version"):  # `wb help convert` is `wb convert --help`
            args = [*args[1:], "--help"] if args[0] == "help" else ["--version"]
            if args[0] not in BY_NAME:
                with self.make_context(ctx.info_name, args):
                    ctx.exit()
        if args and args[0] not in BY_NAME and not args[0].startswith("-"):
            from weighbridge.cli.habits import explain_word

            ctx.fail(explain_word(args[0], {name: row.name for name, row in BY_NAME.items()}))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(row.section for row in COMMANDS):
            with formatter.section(section):
                formatter.write_dl([(r.name, r.help) for r in COMMANDS if r.section == section], col_max=12)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    epilog="\b\nExamples:\n"
    "  wb inspect model.gguf\n"
    "  wb verify ./my-model/\n"
    "  wb convert ./my-model/ my-model.gguf --dtype q8_0\n\n"
    "wb COMMAND --help shows more about a command, wb help TOPIC a page of the docs; wb help topics lists them.",
)
def cli() -> None:
    """One tool for files of model weights: identify, check and convert them.

    A PATH is a file, a folder with a model, or one of a set of shards. Code in a file is never run.
    """


@dataclass(frozen=True, kw_only=True)
class VersionOption:
    version: bool = option("Show the version and exit.", False, letter="V")


def _print_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    """Prints the version. Says so if it is the pure Python one."""
    if asked and not ctx.resilient_parsing:
        from weighbridge.base.native import slow_version

        slow = slow_version()
        echo(f"weighbridge {__version__}" + (f" ({clean(slow)})" if slow else ""))
        ctx.exit()


cli.params += click_options(VersionOption, expose_value=False, is_eager=True, callback=_print_version)
cli.params += common_options()


def main(argv: Sequence[str] | None = None) -> int:
    """The command's entry point. Returns the exit code and never raises."""
    SCREEN.__init__()  # type: ignore[misc]  # a second run in one process starts with the defaults
    with _buffered_stdout():
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # the terminal's encoding may lack the characters of a file name
                stream.reconfigure(errors="backslashreplace")
        for name in ("SIGTERM", "SIGHUP"):  # unwind as for an error, so that no half-written file remains
            number = getattr(signal, name, None)
            with suppress(ValueError):  # not the main thread (a test, an embedding): its owner handles signals
                if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _exit_on_signal)
        try:
            code = _invoke(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # `wb ... | head` closed the pipe; Python's flush at exit must not complain about it
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return NO_READER
        except BaseException as error:
            code = _report(error)
            for line in getattr(error, "__notes__", ()):  # what was kept of the work
                print_error("", line)
            return code


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _buffered_stdout() -> Iterator[None]:
    """Adds a buffer under an unbuffered stdout. With PYTHONUNBUFFERED the text layer drops bytes that a full disk
    refuses; the buffer reports the error."""
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
    name = "weighbridge" if PurePath(sys.argv[0]).stem == "weighbridge" else "wb"  # the name that was called
    if instruction := os.environ.get("_WB_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, name, "_WB_COMPLETE", instruction)
    show_plainly = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *more: Any) -> None:
        if issubclass(category, LeftoverWarning):
            warn(clean(str(message)))
        else:
            show_plainly(message, category, *more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", LeftoverWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # passes the other arguments on
        try:
            with cli.make_context(name, args) as ctx:
                result = cli.invoke(ctx)
                return result if isinstance(result, int) else 0
        except click.exceptions.Exit as end:
            return end.exit_code


def _report(error: BaseException) -> int:
    """Prints an error and returns the exit code. An unexpected one is reported as a bug in Weighbridge."""
    if SCREEN.debug or os.environ.get("WEIGHBRIDGE_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    match error:
        case WeighbridgeError():
            print_error(error.message, error.hint)
        case click.exceptions.NoArgsIsHelpError():
            error.show()  # prints the help
        case click.ClickException():
            hint = None
            if isinstance(error, click.UsageError) and error.ctx is not None:
                sys.stderr.write(error.ctx.get_usage() + "\n")
                from weighbridge.cli.habits import advice

                hint = advice(error) or f"{error.ctx.command_path} --help"
            print_error(error.format_message(), hint)
        # Ctrl-C during `threading.Event.wait` may raise "RuntimeError: release unlocked lock".
        case KeyboardInterrupt() | click.Abort() | RuntimeError(__context__=KeyboardInterrupt()):
            print_error("interrupted")
            return INTERRUPTED
        case SystemExit():
            return error.code if isinstance(error.code, int) else TROUBLE
        case OSError():
            from weighbridge.cli.habits import next_step

            named = (error.filename, error.filename2)
            paths = " -> ".join(os.fsdecode(p) for p in named if isinstance(p, (str, bytes, os.PathLike)))
            message = f"{paths}: {os_words(error)}" if paths else os_words(error)
            print_error(message, _NEXT_STEPS.get(error.errno or 0) or next_step(error))
        case MemoryError():
            print_error("out of memory", "use less memory at once: --max-memory, -j 1")
        case _:
            frame = error.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            place = f" at {PurePath(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
            print_error(
                f"this is a fault of weighbridge {__version__}: {type(error).__name__}: {error}{place}",
                "run the same command with --debug and report its output, with the file's `wb identify --json`",
            )
            return FAULT
    return TROUBLE


_FULL: Final = "free some space, or choose a target on another disk"
_NEXT_STEPS: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file system or a limit refuses a file of this size: write shards, --max-shard-size 4GB",
}
