"""How many examples Hypothesis tries where a test names a number: that many, and of a sample (`--sample`) a tenth.
A test that asks what the examples were like takes Hypothesis's own `settings`, and so always all of them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: The examples of a test that names no number, in a sample.
SAMPLED = 25


def examples(count: int, **how: Any) -> settings:
    """The settings for so many examples; `how`: further settings."""
    sampling = settings().max_examples == SAMPLED
    return settings(max_examples=max(10, count // 10) if sampling else count, **how)
