"""The output of commands: text, tables, JSON, colours, progress. Only this module writes to the terminal;
libraries never print.

Rules. (1) Answers go to standard output; notes, warnings, errors and progress go to standard error. (2) Piped output is
plain: no colour, no truncation, no boxes. (3) Text from files is untrusted: it passes `clean`, so that a tensor's name
can't move the cursor, recolour the terminal or reorder a line. (4) rich is imported only to draw a table on a terminal,
and json only to print JSON.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO

from weighbridge.base.records import dataclass

if TYPE_CHECKING:
    from rich.console import Console

_RESET: Final = "\x1b[0m"
_NEWLINE: Final = "\n"
_GAP: Final = 2  # characters between the columns of a table
_LEAST: Final = 24  # characters of a column with broken lines; a narrower column gets separate lines
_SHORTEST: Final = 8
_WORD: Final = 1000  # characters without a space that a terminal shows
# Style names that commands use -> (ANSI codes, the same for rich).
STYLES: Final = {
    "error": ("1;31", "bold red"),
    "warning": ("33", "yellow"),
    "info": ("36", "cyan"),
    "ok": ("32", "green"),
    "head": ("1", "bold"),
    "dim": ("2", "dim"),
    "name": ("36", "cyan"),
    "number": ("35", "magenta"),
}


@dataclass(slots=True)
class Screen:
    """The user's settings for output, one per process. The group's options set them. `spooled`: the temporary copy of
    standard input, shown as `-`."""

    color: str = "auto"
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    spooled: str = ""


SCREEN: Final = Screen()


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that a person reads."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def colored(stream: TextIO) -> bool:
    """Whether to colour `stream`: `--color`, then NO_COLOR, then FORCE_COLOR / CLICOLOR_FORCE, then the terminal."""
    if SCREEN.color != "auto":
        return SCREEN.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(k, "0") not in ("", "0") for k in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_terminal(stream)


class Styled(NamedTuple):
    """Text with one of `STYLES`."""

    text: str
    style: str


class Column(NamedTuple):
    """A table's column; `right` for numbers. `drop`: the order in which columns are dropped if the terminal is too
    narrow, 1 first; 0 is never dropped."""

    name: str
    right: bool = False
    drop: int = 0


def styled(text: str, style: str | None, stream: TextIO | None = None) -> str:
    """`text` in a style, if the stream shows colours. The text must be clean already."""
    if style is None or not text or not colored(stream or sys.stdout):
        return text
    return f"\x1b[{STYLES[style][0]}m{text}{_RESET}"


def clean(text: str, keep: str = "") -> str:
    """Escapes unprintable characters: control characters, ANSI sequences, bidirectional overrides, invisible
    characters, lone surrogates. `keep` lists characters to leave (a template's newlines)."""
    text = renamed(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def renamed(text: str) -> str:
    """`text` with `-` for the temporary copy of standard input, which the user never named."""
    path = SCREEN.spooled
    return text.replace(f"file://{path}", "-").replace(path, "-") if path else text


def shortened(text: str) -> str:
    """Cuts words that are too long for a terminal and adds their length: a name may have megabytes."""
    if len(text) <= _WORD:
        return text
    from weighbridge.base.words import plural  # late: --help starts without it

    return re.sub(rf"\S{{{_WORD},}}", lambda m: f"{m[0][: _WORD // 2]}... ({plural(len(m[0]), 'character')})", text)


def echo(text: str = "", style: str | None = None) -> None:
    """Prints a line of the answer. The caller has cleaned text from files."""
    text = shortened(renamed(text)) if is_terminal(sys.stdout) else renamed(text)
    sys.stdout.write(styled(text, style, sys.stdout) + "\n")


def write_bytes(data: bytes | memoryview) -> None:
    """Writes raw bytes of the answer (`wb get` into a pipe)."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def note(text: str, style: str | None = None) -> None:
    """Prints a line to standard error, unless `--quiet` is set."""
    if not SCREEN.quiet:
        sys.stderr.write(styled(shortened(renamed(text)), style, sys.stderr) + "\n")


def warn(text: str) -> None:
    """Prints a warning to standard error, unless `--quiet` is set."""
    note(f"{styled('warning:', 'warning', sys.stderr)} {text}")


def warn_if_slow(size: int) -> None:
    """Warns if the pure Python version is about to compute `size` bytes, and these are many."""
    from weighbridge.base.native import SLOW_JOB, slow_version

    if size >= SLOW_JOB and (words := slow_version()) is not None:
        warn(f"this takes long: {clean(words)}")


_SECRET: Final = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]*@")


def print_error(text: str, hint: str | None = None) -> None:
    """Prints an error and the next step, also with `--quiet`. Masks passwords in URLs."""
    for label, style, line in (("error:", "error", text), ("  hint:", "info", hint)):
        if line:
            safe = clean(_SECRET.sub("***@", line), keep=_NEWLINE)
            sys.stderr.write(f"{styled(label, style, sys.stderr)} {shortened(safe)}\n")


def os_words(error: OSError) -> str:
    """The operating system's message, except for a missing file."""
    return "no such file or folder" if error.errno == errno.ENOENT else error.strerror or str(error) or "OSError"


_DECIMAL: Final = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNT: Final = ("", "K", "M", "B", "T")


def _scaled(n: float, steps: Sequence[str]) -> tuple[float, str]:
    at = 0
    while abs(n) >= 999.95 and at < len(steps) - 1:  # 999.95 would round to 1000.0
        n, at = n / 1000, at + 1
    return n, steps[at]


def human_bytes(n: int, exact: bool = False) -> str:
    """`4.7 GB` (decimal units); with `exact`, `4.7 GB (4,702,341,120 bytes)`."""
    value, unit = _scaled(n, _DECIMAL)
    if unit == "bytes":
        return f"{n:,} byte{'' if n == 1 else 's'}"
    short = f"{value:.1f} {unit}"
    return f"{short} ({n:,} bytes)" if exact else short


def human_count(n: int) -> str:
    """`22.7M`, `8.03B`: three significant digits, as model names count parameters."""
    value, unit = _scaled(n, _COUNT)
    return f"{n}" if not unit else f"{value:.3g}{unit}" if abs(value) < 999.5 else f"{value:.0f}{unit}"


def shorten(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`; lists all with --verbose."""
    shown = names if SCREEN.verbose else names[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else "")


def short_float(value: float) -> str:
    """The fewest digits that give the same number; for a value that is an f32, the same f32."""
    import struct

    try:
        if struct.unpack("f", struct.pack("f", value))[0] == value:
            texts = (f"{value:.{digits}g}" for digits in range(6, 10))
            short = next(t for t in texts if struct.pack("f", float(t)) == struct.pack("f", value))
            return min(repr(float(short)), repr(value), key=len)
    except (OverflowError, StopIteration):  # the rounded text may be larger than the largest f32
        pass
    return repr(value)


def human_time(seconds: float) -> str:
    """`0.4s`, `41s`, `3m12s`, `2h05m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m{s % 60:02d}s" if s < 3600 else f"{s // 3600}h{s % 3600 // 60:02d}m"


# JSON


def _renamed_in(data: Any) -> Any:
    """Plain data with `renamed` texts."""
    if isinstance(data, dict):
        return {_renamed_in(key): _renamed_in(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_renamed_in(value) for value in data]
    return renamed(data) if isinstance(data, str) else data


def emit_json(value: Any) -> None:
    """Prints the answer as one JSON document: compact when piped, indented on a terminal. Escapes unprintable
    characters, so that no text from a file controls the terminal, and all but ASCII if the stream's encoding lacks
    characters."""
    import json

    from weighbridge.base.plain import plain

    style: dict[str, Any] = {"indent": 2} if is_terminal(sys.stdout) else {"separators": (",", ":")}
    data = plain(value)
    data = _renamed_in(data) if SCREEN.spooled else data
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, **style)
    # JSON escapes C0, but not DEL, C1, bidirectional overrides and lone surrogates.
    odd = {ord(c): json.dumps(c)[1:-1] for c in set(text) if not c.isprintable() and c not in _NEWLINE}
    text = text.translate(odd) if odd else text
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(data, allow_nan=False, **style)
    sys.stdout.write(text + "\n")


# Tables

Cell = str | int | float | Styled | None


def _cell(value: object) -> Styled:
    if isinstance(value, Styled):
        return Styled(clean(value.text), value.style)
    return Styled("" if value is None else clean(str(value)), "")


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]], title: str | None = None) -> None:
    """Prints rows under their columns; cleans the cells. Aligned plain text when piped, drawn by rich on a terminal."""
    heads = [c if isinstance(c, Column) else Column(c) for c in columns]
    lines = [[Styled(c.name, "head") for c in heads], *([_cell(v) for v in row] for row in rows)]
    lines = lines if any(c.name for c in heads) else lines[1:]
    if title:
        echo(clean(title), "head")
    if is_terminal(sys.stdout):
        return _draw(heads, lines)
    widths = [max((len(line[i].text) for line in lines), default=0) for i in range(len(heads))]
    for line in lines:
        padded = (
            (c.text.rjust(w) if h.right else c.text.ljust(w), c.style)
            for c, w, h in zip(line, widths, heads, strict=True)
        )
        echo("  ".join(styled(text, style or None) for text, style in padded).rstrip())
    return None


def _draw(heads: list[Column], lines: list[list[Styled]]) -> None:
    """Draws a table. If the terminal is too narrow, drops columns that allow it, then breaks the lines of the widest
    column. If little room is left for that one, its cells get separate lines above the other columns."""
    from rich.cells import cell_len

    widths = [max((cell_len(line[i].text) for line in lines), default=0) for i in range(len(heads))]
    kept = list(range(len(heads)))
    for i in sorted((i for i, head in enumerate(heads) if head.drop), key=lambda i: heads[i].drop):
        if sum(widths[k] for k in kept) + _GAP * (len(kept) - 1) <= width():
            break
        kept.remove(i)
    heads, widths = [heads[i] for i in kept], [widths[i] for i in kept]
    lines = [[line[i] for i in kept] for line in lines]
    widest = max(range(len(heads)), key=widths.__getitem__)
    spare = width() - sum(widths) - _GAP * (len(heads) - 1)
    if spare >= 0:
        return _rows(heads, lines, widths)
    if widths[widest] + spare >= min(_LEAST, widths[widest]):
        return _rows(heads, lines, [*widths[:widest], widths[widest] + spare, *widths[widest + 1 :]])
    narrow = [i for i in range(len(heads)) if i != widest]
    widths = [widths[i] for i in narrow]
    while len(widths) > 1 and (over := sum(widths) + _GAP * len(widths) - width()) > 0 and max(widths) > _SHORTEST:
        largest = max(range(len(widths)), key=widths.__getitem__)
        widths[largest] -= min(over, max(widths[largest] - sorted(widths)[-2], 1))
    for line in lines:
        _rows([heads[widest]], [[line[widest]]], [width()])
        _rows([heads[i] for i in narrow], [[line[i] for i in narrow]], widths, indent=_GAP)
    return None


def _rows(heads: Sequence[Column], lines: Sequence[Sequence[Styled]], widths: Sequence[int], indent: int = 0) -> None:
    """Breaks cells that are longer than their column, at spaces if possible."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=False)
    for head, chosen in zip(heads, widths, strict=True):
        drawn.add_column(justify="right" if head.right else "left", overflow="fold", width=chosen)
    for line in lines:
        drawn.add_row(*(Text(c.text, style=STYLES[c.style][1] if c.style else "") for c in line))
    console().print(Padding(drawn, (0, 0, 0, indent)))


def pairs(items: Iterable[tuple[str, object]], indent: int = 0) -> None:
    """Prints `label  value` lines with the labels in one column, without the pairs whose value is None. On a terminal,
    long values are wrapped."""
    shown = [(label, _cell(v)) for label, v in items if v is not None]
    labels = max((len(label) for label, _ in shown), default=0)
    used = indent + labels + 2
    for label, cell in shown:
        lines = [cell.text]
        if is_terminal(sys.stdout):
            import textwrap

            lines = textwrap.wrap(cell.text, max(width() - used, 16), drop_whitespace=True) or [""]
        name = styled(clean(label).ljust(labels), "dim")
        echo(f"{' ' * indent}{name}  {styled(lines[0], cell.style or None)}".rstrip())
        for line in lines[1:]:
            echo(f"{' ' * used}{styled(line, cell.style or None)}")


def console() -> Console:
    """A rich console on standard output that obeys `--color`. Pass it `Text`, never markup with names from a file."""
    from rich.console import Console

    color = colored(sys.stdout)
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, no_color=not color, force_terminal=color or None,
        width=width(),
    )  # fmt: skip


def width(default: int = 100) -> int:
    """Columns of the terminal; `default` when piped."""
    if not is_terminal(sys.stdout):
        return default
    import shutil  # late: it loads every codec of archives

    return shutil.get_terminal_size((default, 24)).columns


# Progress


class Progress:
    """A line with bar, rate and time left on standard error, if that is a terminal.

    Pass it to the library as `progress(done, total, label)`: bytes, or a number of things with a `noun`. Use it in a
    `with`, which removes the line at the end, also after an error. With `computing`, a large job of the pure Python
    version starts with a warning."""

    PERIOD: Final = 0.1  # seconds between two updates
    WINDOW: Final = 5.0  # seconds over which the rate is averaged
    CELLS: Final = 24  # width of the bar

    def __init__(self, stream: TextIO | None = None, computing: bool = False, noun: str = "") -> None:
        self.stream, self.computing, self.noun = stream or sys.stderr, computing, noun
        self.active = is_terminal(self.stream) and not SCREEN.quiet
        self.samples: list[tuple[float, int]] = []
        self.drawn = 0.0

    def __call__(self, done: int, total: int, label: str = "") -> None:
        if self.computing:
            self.computing = False
            warn_if_slow(total)
        if not self.active:
            return
        now = time.monotonic()
        if now - self.drawn < self.PERIOD and done < total:
            return
        self.drawn = now
        self.samples = [s for s in self.samples if now - s[0] <= self.WINDOW and s[1] <= done] + [(now, done)]
        share = done / total if total else 1.0
        full, empty = ("█", "░") if "utf" in (self.stream.encoding or "").lower() else ("#", ".")
        filled = round(share * self.CELLS)
        (t0, d0), (t1, d1) = self.samples[0], self.samples[-1]
        rate = (d1 - d0) / (t1 - t0) if t1 > t0 else 0.0
        parts = [full * filled + empty * (self.CELLS - filled), f"{share:4.0%}"]
        if self.noun:
            parts += [f"{self.noun} {done:,} of {total:,}"]
        else:
            parts += [f"{human_bytes(done)} of {human_bytes(total)}"]
            parts += [f"{human_bytes(int(rate))}/s"] if rate else []
        parts += [f"{human_time((total - done) / rate)} left"] if rate else []
        self._draw("  ".join([*parts, clean(label)]))

    def count(self, done: int, noun: str, label: str = "") -> None:
        """Shows the count of work without a known end."""
        now = time.monotonic()
        if self.active and now - self.drawn >= self.PERIOD:
            self.drawn = now
            from weighbridge.base.words import plural

            self._draw(f"{plural(done, noun)}  {clean(label)}")

    def clear(self) -> None:
        """Removes the line before something else is printed."""
        if self.active and self.drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _draw(self, line: str) -> None:
        import shutil

        columns = shutil.get_terminal_size((80, 24)).columns
        self.stream.write(f"\r{line[: columns - 1]}\x1b[K")
        self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
