"""What holds for all tests: none is timed. A machine at work on other things is no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")
