"""`python -m weighbridge` is the command `wb`."""

from __future__ import annotations

import sys

from weighbridge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
