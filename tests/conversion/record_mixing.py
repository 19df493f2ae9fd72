"""Record what mergekit-moe 0.1.5 makes of the recipes, for tests/conversion/test_mixing.py.

python tests/conversion/record_mixing.py       # in an environment with mergekit; writes golden/mixing.npz
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import torch
    import transformers
    from mergekit.moe import router  # type: ignore[import-not-found]
    from mergekit.moe.config import MoEMergeConfig  # type: ignore[import-not-found]
    from mergekit.options import MergeOptions  # type: ignore[import-not-found]
    from mergekit.scripts.moe import build  # type: ignore[import-not-found]
    from safetensors.numpy import load_file
    from tests.conversion.mixing_cases import RECIPES, write_models

    class Float32:  # mergekit runs models in bf16, whose rounding is no part of what it computes
        @staticmethod
        def from_pretrained(*args: Any, **given: Any) -> Any:
            given.pop("device_map"), given.pop("torch_dtype")
            return transformers.AutoModelForCausalLM.from_pretrained(*args, **given, dtype=torch.float32)

    router.AutoModelForCausalLM = Float32
    out = Path(__file__).parent / "golden" / "mixing.npz"
    results: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = write_models(Path(folder))
        for number, (name, (kind, recipe)) in enumerate(RECIPES.items()):
            os.chdir(root / kind)
            made = root / f"out{number}"
            options = MergeOptions(copy_tokenizer=False, write_model_card=False)
            build(MoEMergeConfig.model_validate({"dtype": "float32", **recipe}), str(made), options)
            mixed = {k: v for file in made.glob("*.safetensors") for k, v in load_file(file).items()}
            results |= {f"{name}/{key}": value for key, value in mixed.items() if ".mlp." in key}
            copies = sorted(key for key in mixed if ".mlp." not in key)  # of the base's tensors
            results[f"{name}/copies"] = np.frombuffer(json.dumps(copies).encode(), np.uint8)
            results[f"{name}/config.json"] = np.frombuffer((made / "config.json").read_bytes(), np.uint8)
    np.savez_compressed(out, **results)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
