"""Invariant: any bytes are a table of a family with names for a small model, or refused, saying what is wrong."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

import harness
from tests.plugins import TOYS, all_toys

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.registry import families, read_family
from weighbridge.models.config.keys import table
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import config_to_gguf

CONFIG = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "num_local_experts": 2, "num_experts": 2,
}  # fmt: skip
PATH = Path(tempfile.mkdtemp()) / "table.toml"
atexit.register(shutil.rmtree, PATH.parent, ignore_errors=True)

context = all_toys


def target(data: bytes) -> None:
    PATH.write_bytes(data)
    try:
        family = read_family(PATH)
        for name in family.architectures:
            config = {"architectures": [name], **CONFIG}
            sizes = family.sizes_from_hf(config)
            for dialect in family.dialects:
                shapes = family.names(dialect, sizes)
                family.check(dialect, sizes, shapes)
            config_to_gguf(config, family, file_type=1)
            config_losses(config, family)
    except UsageError:
        return


def seeds() -> list[bytes]:
    """A table with one of each thing that the grammar has, one that leans on another's, and a plug-in's."""
    families(), table()  # read once; not what is measured
    small = Path(__file__).with_name("small_family.toml").read_bytes()
    leaning = (
        b'name = "leaning"\ngguf = "llama"\nlike = "arcee"\nexclude = ["role.up"]\n'
        b'[architecture.LeaningForCausalLM]\nmodel_type = "x"\ngguf = []\n[role]\nembed.names.hf = "wte.weight"\n'
    )
    return [small, small, small, leaning, (TOYS / "toy_family.toml").read_bytes()]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds, context=context))
