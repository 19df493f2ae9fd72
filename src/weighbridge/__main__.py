"""`python -m weighbridge` is the command `wb`."""

from __future__ import annotations

import sys

from weighbridge.cli.process import run

if __name__ == "__main__":
    sys.exit(run())
