"""Date formats that chat templates write, and the equivalent actions in Ollama's Go templates.

Ollama's templates have `currentDate` and `yesterdayDate` in the format 2031-10-29 (template/template.go). Other formats
are assembled from its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

#: The day on which templates are learned, and those on which they are checked: ends of months and years, a leap day.
LEARNED_DAY: Final = date(2031, 10, 29)
CHECKED_DAYS: Final = (date(2032, 3, 1), date(2033, 1, 1), date(2034, 5, 7))
_MARKS: Final = 0xE000  # private characters that represent date formats in learned texts


class DateForm(NamedTuple):
    """`strftime`: the format of the day `back` days earlier. `go`: the actions that write it."""

    strftime: str
    go: str
    back: int = 0

    def write(self, day: date) -> str:
        return (day - timedelta(days=self.back)).strftime(self.strftime)


def _month(short: bool) -> str:
    """Returns actions that write the month's English name."""
    names = [date(2000, n, 1).strftime("%b" if short else "%B") for n in range(1, 13)]
    tests = "{{ else if eq $month %s }}%s"
    branches = "".join(tests % (f'"{n:02}"', name) for n, name in enumerate(names, 1))
    chain = branches.replace("else if", "if", 1) + "{{ end }}"
    return f"{{{{ $month := slice (currentDate) 5 7 }}}}{chain}"


_DAY: Final = "{{ slice (currentDate) 8 10 }}"
_YEAR: Final = "{{ slice (currentDate) 0 4 }}"
FORMS: Final[Sequence[DateForm]] = (
    DateForm("%Y-%m-%d", "{{ currentDate }}"),
    DateForm("%Y-%m-%d", "{{ yesterdayDate }}", 1),
    DateForm("%d %b %Y", f"{_DAY} {_month(True)} {_YEAR}"),
    DateForm("%B %d, %Y", f"{_month(False)} {_DAY}, {_YEAR}"),
    DateForm("%d %B %Y", f"{_DAY} {_month(False)} {_YEAR}"),
)


def seconds(day: date) -> float:
    """Returns noon of a day in seconds since 1970 (UTC)."""
    return datetime.combine(day, time(12), UTC).timestamp()


def mark_dates(text: str) -> str:
    """Returns a text written on `LEARNED_DAY` with its dates replaced by marks."""
    for number, form in enumerate(FORMS):
        text = text.replace(form.write(LEARNED_DAY), chr(_MARKS + number))
    return text


def write_dates(text: str, day: date) -> str:
    """Returns a marked text as written on a day."""
    return "".join(piece if form is None else form.write(day) for piece, form in pieces(text))


def pieces(text: str) -> Iterator[tuple[str, DateForm | None]]:
    """Yields a marked text as plain pieces and date formats."""
    start = 0
    for at, character in enumerate(text):
        if 0 <= (number := ord(character) - _MARKS) < len(FORMS):
            yield text[start:at], None
            yield character, FORMS[number]
            start = at + 1
    yield text[start:], None
