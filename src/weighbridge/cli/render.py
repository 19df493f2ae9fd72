"""The only file that knows a screen: text, tables, JSON, colours, progress. Everything that a command says goes through
here; libraries never print.

Rules. (1) Answers go to standard output, everything else (notes, warnings, errors, progress) to standard error.
(2) What is piped is plain: no colour, no truncation, no boxes. (3) Text from files is untrusted: it passes `clean`, so
that a tensor's name can't move the cursor, recolour the terminal or reorder a line. (4) rich is imported only when a
table is drawn on a terminal; so is json when JSON is asked for.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_RESET: Final = "\x1b[0m"
_NEWLINE: Final = "\n"
_GAP: Final = 2  # characters between the columns of a table
_LEAST: Final = 24  # characters of a column that is broken; a narrower one stands on lines of its own
_SHORTEST: Final = 8
_WORD: Final = 1000  # characters without a space that a screen shows
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


@dataclasses.dataclass(slots=True)
class Screen:
    """What the user asked for about output. One per process: a process has one screen. Set by the group's options.
    `spooled`: the temporary file with standard input, which is shown as `-`."""

    color: str = "auto"
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    spooled: str = ""


SCREEN: Final = Screen()


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads `stream`."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def colored(stream: TextIO) -> bool:
    """Whether `stream` gets colours: `--color`, then NO_COLOR, then FORCE_COLOR / CLICOLOR_FORCE, then the terminal."""
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
    """A table's column; `right` for numbers."""

    name: str
    right: bool = False


def styled(text: str, style: str | None, stream: TextIO | None = None) -> str:
    """`text` in a style, where the stream shows colours. The text must be clean already."""
    if style is None or not text or not colored(stream or sys.stdout):
        return text
    return f"\x1b[{STYLES[style][0]}m{text}{_RESET}"


def clean(text: str, keep: str = "") -> str:
    """`text` with everything that isn't printable escaped: control characters, ANSI sequences, bidirectional
    overrides, invisible characters, lone surrogates. `keep` lists characters to leave (a template's newlines)."""
    text = renamed(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(ord(c)) for c in text)


def renamed(text: str) -> str:
    """`text` with `-` for the temporary file with standard input: nobody has named that file."""
    path = SCREEN.spooled
    return text.replace(f"file://{path}", "-").replace(path, "-") if path else text


def _escape(code: int) -> str:
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str) -> str:
    """`text` with words that no screen has room for cut, and their length: a name may have megabytes."""
    if len(text) <= _WORD:
        return text
    return re.sub(rf"\S{{{_WORD},}}", lambda m: f"{m[0][: _WORD // 2]}... ({len(m[0]):,} characters)", text)


def echo(text: str = "", style: str | None = None) -> None:
    """One line of an answer. The caller has cleaned what comes from a file."""
    text = shortened(renamed(text)) if is_terminal(sys.stdout) else renamed(text)
    sys.stdout.write(styled(text, style, sys.stdout) + "\n")


def write_bytes(data: bytes | memoryview) -> None:
    """Raw bytes of an answer (`wb get` into a pipe)."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def note(text: str, style: str | None = None) -> None:
    """One line beside the answer, on standard error; silent with `--quiet`."""
    if not SCREEN.quiet:
        sys.stderr.write(styled(shortened(renamed(text)), style, sys.stderr) + "\n")


def warn(text: str) -> None:
    """A warning, on standard error; silent with `--quiet`."""
    note(f"{styled('warning:', 'warning', sys.stderr)} {text}")


def print_error(text: str, hint: str | None = None) -> None:
    """An error and the next step. Shown with `--quiet` too."""
    for label, style, words in (("error:", "error", text), ("  hint:", "info", hint)):
        if words:
            sys.stderr.write(f"{styled(label, style, sys.stderr)} {shortened(clean(words, keep=_NEWLINE))}\n")


def os_words(error: OSError) -> str:
    """The operating system's own words, but for the commonest: what isn't there."""
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


def plural(n: int, noun: str) -> str:
    """`1 file`, `1,204 files`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def shorten(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`; all of them with --verbose."""
    shown = names if SCREEN.verbose else names[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else "")


def short_float(value: float) -> str:
    """The fewest digits that mean the same number: of a value that came from an f32, those that an f32 needs."""
    import struct

    try:
        if struct.unpack("f", struct.pack("f", value))[0] == value:
            texts = (f"{value:.{digits}g}" for digits in range(6, 10))
            short = next(t for t in texts if struct.pack("f", float(t)) == struct.pack("f", value))
            return min(repr(float(short)), repr(value), key=len)
    except (OverflowError, StopIteration):  # a rounded text may lie beyond the largest f32
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
    """The answer as one JSON document: compact when piped, indented on a terminal. What doesn't print is escaped, so
    that no text of a file acts on a terminal; all but ASCII is where the stream's encoding needs it."""
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
    """Rows under their columns. Cells are cleaned here. Plain aligned text when piped, drawn by rich on a terminal."""
    heads = [c if isinstance(c, Column) else Column(c) for c in columns]
    cells = [[_cell(v) for v in row] for row in rows]
    if title:
        echo(clean(title), "head")
    if is_terminal(sys.stdout):
        _drawn(heads, cells)
    else:
        _aligned(heads, cells)


def _aligned(heads: Sequence[Column], cells: Sequence[Sequence[Styled]]) -> None:
    lines = [[Styled(c.name, "head") for c in heads] if any(c.name for c in heads) else [], *cells]
    lines = [line for line in lines if line]
    widths = [max((len(line[i].text) for line in lines), default=0) for i in range(len(heads))]
    for line in lines:
        padded = (
            (c.text.rjust(w) if h.right else c.text.ljust(w), c.style)
            for c, w, h in zip(line, widths, heads, strict=True)
        )
        echo("  ".join(styled(text, style or None) for text, style in padded).rstrip())


def _drawn(heads: Sequence[Column], cells: Sequence[Sequence[Styled]]) -> None:
    """The longest column is broken where the terminal is too narrow; where little is left for it beside the others, it
    stands above them on lines of its own."""
    from rich.cells import cell_len

    lines = [[Styled(c.name, "head") for c in heads] if any(c.name for c in heads) else [], *cells]
    lines = [line for line in lines if line]
    widths = [max((cell_len(line[i].text) for line in lines), default=0) for i in range(len(heads))]
    longest = max(range(len(heads)), key=widths.__getitem__)
    wanted, there = widths[longest], width() - sum(widths) - _GAP * (len(heads) - 1)
    if there >= 0:
        _rows(heads, lines, widths)
    elif wanted + there >= min(_LEAST, wanted):
        _rows(heads, lines, [*widths[:longest], wanted + there, *widths[longest + 1 :]])
    else:
        _stacked(heads, lines, widths, longest)


def _stacked(heads: Sequence[Column], lines: Sequence[Sequence[Styled]], widths: list[int], longest: int) -> None:
    others = [i for i in range(len(heads)) if i != longest]
    widths = [widths[i] for i in others]
    while len(widths) > 1 and (over := sum(widths) + _GAP * len(widths) - width()) > 0 and max(widths) > _SHORTEST:
        widest = max(range(len(widths)), key=widths.__getitem__)
        widths[widest] -= min(over, max(widths[widest] - sorted(widths)[-2], 1))
    for line in lines:
        _rows([heads[longest]], [[line[longest]]], [width()])
        _rows([heads[i] for i in others], [[line[i] for i in others]], widths, indent=_GAP)


def _rows(heads: Sequence[Column], lines: Sequence[Sequence[Styled]], widths: Sequence[int], indent: int = 0) -> None:
    """Cells that are longer than their column is wide are broken, at spaces where they have some."""
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
    """`label  value` lines, labels in one column. Pairs whose value is None are left out."""
    shown = [(label, _cell(v)) for label, v in items if v is not None]
    width = max((len(label) for label, _ in shown), default=0)
    for label, cell in shown:
        name = styled(clean(label).ljust(width), "dim")
        first, *more = _folded(cell.text, indent + width + 2)
        echo(f"{' ' * indent}{name}  {styled(first, cell.style or None)}".rstrip())
        for line in more:
            echo(f"{' ' * (indent + width + 2)}{styled(line, cell.style or None)}")


def _folded(text: str, used: int) -> list[str]:
    """The lines of a value on a terminal, beside the `used` columns of its label; one line where it is piped."""
    if not is_terminal(sys.stdout):
        return [text]
    import textwrap

    return textwrap.wrap(text, max(width() - used, 16), drop_whitespace=True) or [""]


def console() -> Console:
    """A rich console on standard output that obeys `--color`. Feed it `Text`, never markup made of a file's names."""
    from rich.console import Console

    color = colored(sys.stdout)
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, no_color=not color, force_terminal=color or None,
        width=width(),
    )  # fmt: skip


def width(default: int = 100) -> int:
    """Columns of the terminal; `default` when piped."""
    return shutil.get_terminal_size((default, 24)).columns if is_terminal(sys.stdout) else default


# Progress


class Progress:
    """A line with bar, rate and time left on standard error, while it lasts; nothing unless a person watches.

    Hand it to the library as `progress(done, total, label)` (bytes). Use it in a `with`: the line is removed at the
    end, also when an error ends the work."""

    PERIOD: Final = 0.1  # seconds between two drawings
    WINDOW: Final = 5.0  # seconds of which the rate is the mean

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.active = is_terminal(self.stream) and not SCREEN.quiet
        self.samples: list[tuple[float, int]] = []
        self.drawn = 0.0

    def __call__(self, done: int, total: int, label: str = "") -> None:
        if not self.active:
            return
        now = time.monotonic()
        if now - self.drawn < self.PERIOD and done < total:
            return
        self.drawn = now
        self.samples = [s for s in self.samples if now - s[0] <= self.WINDOW and s[1] <= done] + [(now, done)]
        self._draw(self._line(done, total, label))

    def count(self, done: int, noun: str, label: str = "") -> None:
        """Where the end is not known: how many there have been."""
        now = time.monotonic()
        if self.active and now - self.drawn >= self.PERIOD:
            self.drawn = now
            self._draw(f"{plural(done, noun)}  {clean(label)}")

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self.active and self.drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _rate(self) -> float:
        (t0, d0), (t1, d1) = self.samples[0], self.samples[-1]
        return (d1 - d0) / (t1 - t0) if t1 > t0 else 0.0

    def _line(self, done: int, total: int, label: str) -> str:
        share, rate = done / total if total else 1.0, self._rate()
        left = f"{human_time((total - done) / rate)} left" if rate else ""
        speed = f"{human_bytes(int(rate))}/s" if rate else ""
        parts = [_bar(share, self.stream), f"{share:4.0%}", f"{human_bytes(done)} of {human_bytes(total)}", speed, left]
        return "  ".join([p for p in parts if p] + [clean(label)])

    def _draw(self, line: str) -> None:
        columns = shutil.get_terminal_size((80, 24)).columns
        self.stream.write(f"\r{line[: columns - 1]}\x1b[K")
        self.stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def _bar(share: float, stream: TextIO, cells: int = 24) -> str:
    full, empty = ("█", "░") if "utf" in (stream.encoding or "").lower() else ("#", ".")
    filled = round(share * cells)
    return full * filled + empty * (cells - filled)
