"""Record what mergekit 0.1.5 makes of the recipes, for tests/conversion/test_merging.py.

python tests/conversion/record_merging.py       # in an environment with mergekit; writes golden/merging*.npz
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    from mergekit.config import MergeConfiguration  # type: ignore[import-not-found]
    from mergekit.merge import run_merge  # type: ignore[import-not-found]
    from mergekit.options import MergeOptions  # type: ignore[import-not-found]
    from safetensors.numpy import load_file
    from tests.conversion.merging_cases import RECIPES, write_models

    out = Path(__file__).parent / "golden" / "merging.npz"
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(write_models(Path(folder)))
        for number, (name, recipe) in enumerate(RECIPES.items()):
            options = MergeOptions(copy_tokenizer=False, write_model_card=False)
            run_merge(MergeConfiguration.model_validate({"dtype": "float32", **recipe}), f"out{number}", options)
            merged = {k: v for file in Path(f"out{number}").glob("*.safetensors") for k, v in load_file(file).items()}
            results[name] = np.concatenate([merged[key].reshape(-1) for key in sorted(merged)])
    np.savez_compressed(out, **results)  # type: ignore[arg-type]
    os.chdir("/")
    record_tokens(out.with_name("merging_tokens.npz"))


def record_tokens(out: Path) -> None:
    """Writes the tokens of each result in the order of their ids, and the rows of its embedding and its head."""
    from mergekit.config import MergeConfiguration
    from mergekit.io.tasks import LoaderCache  # type: ignore[import-not-found]
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions
    from safetensors.numpy import load_file
    from tests.conversion.merging_cases import TOKEN_RECIPES, write_models_with_tokens
    from transformers import AutoTokenizer

    results = {}
    LoaderCache().flush_all()  # it has the files of other models under the same names
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(write_models_with_tokens(Path(folder)))
        for number, (name, recipe) in enumerate(TOKEN_RECIPES.items()):
            configuration = MergeConfiguration.model_validate({"dtype": "float32", **recipe})
            run_merge(configuration, f"out{number}", MergeOptions(write_model_card=False))
            files = Path(f"out{number}").glob("*.safetensors")
            merged = {k: v for file in files for k, v in load_file(file).items()}
            vocab = AutoTokenizer.from_pretrained(f"out{number}").get_vocab()
            results[f"{name}/tokens"] = np.array(sorted(vocab, key=vocab.__getitem__))
            results[f"{name}/embedding"] = merged["model.embed_tokens.weight"]
            results[f"{name}/head"] = merged["lm_head.weight"]
    np.savez_compressed(out, **results)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
