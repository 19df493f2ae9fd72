"""`wb fetch`: files from elsewhere into a folder, resumed and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from weighbridge.cli.options import (
    command,
    dry_run_option,
    examples,
    jobs_option,
    json_option,
    option,
    overwrite_option,
    replace_folder_option,
    size_option,
)
from weighbridge.cli.paths import OUTPUT, PATH
from weighbridge.cli.views.plan import planned, write


@command(
    epilog=examples(
        "wb fetch hf://org/model ./model/",
        "wb fetch hf://org/model@v1.0 ./model/ --include '*.json' --include '*Q4_K_M*'",
        "wb fetch s3://bucket/model ./model/ --exclude '*.bin'",
        "wb fetch hf://org/model ./model/ --dry-run",
    )
)
@click.argument("src", type=PATH)
@click.argument("dst", type=OUTPUT, metavar="DIR")
@option("--include", multiple=True, metavar="GLOB", help="Only files whose path matches.")
@option("--exclude", multiple=True, metavar="GLOB", help="Not those whose path matches.")
@overwrite_option
@replace_folder_option
@option("--parents", is_flag=True, section="Writing", help="Create missing parent folders, more than one level deep.")
@jobs_option
@size_option("--max-memory", help="Memory limit, excluding the interpreter.", section="Writing")
@dry_run_option
@json_option
def fetch(src: Path | str, dst: str, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Fetch the files of SRC (hf://, https://, s3://, ollama:// ...) into the folder DIR.

    Each file is compared with the digest that the Hub or the registry lists before the folder appears under its name.
    Interrupted, the same command goes on from where it was.
    """
    import weighbridge

    plan = planned(weighbridge.plan_fetch, src, dst, options, dry_run=dry_run)
    return write(plan, dry_run=dry_run, as_json=as_json)
