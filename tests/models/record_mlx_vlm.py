"""Records how mlx-vlm converts the models of `mlx_vlm_cases.py`, and checks that it loads ours, strictly.

pip install --no-deps mlx-vlm==0.7.10
python -m tests.models.record_mlx_vlm [--check]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.utils import load_model, save_weights, skip_multimodal_module
from safetensors.numpy import load_file
from tests.models.mlx_vlm_cases import CASES, FORMS, GOLDEN, GROUP, case, recorded, summary
from tests.models.projector_cases import write_folder

import weighbridge as wb


def theirs(folder: Path, form: str, out: Path) -> tuple[Any, dict[str, str]]:
    """The model as mlx_vlm.convert changes it, and its tensors."""
    model = load_model(folder)
    own = getattr(model, "quant_predicate", None) or (lambda *_: True)
    if form == "quantized":
        config = {"vision_config": {}, **json.loads((folder / "config.json").read_text())}
        model, _ = quantize_model(
            model, config, GROUP, 4, quant_predicate=lambda p, m: not skip_multimodal_module(p) and own(p, m)
        )
    out.mkdir()
    save_weights(out, model, donate_weights=False)
    return model, summary({k: v for path in out.glob("*.safetensors") for k, v in load_file(path).items()})


def main(check: bool) -> None:
    record: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name in CASES:
            folder = write_folder(case(name), Path(place, name))
            record[name] = {}
            for form, options in FORMS.items():
                model, record[name][form] = theirs(folder, form, Path(place, f"{name}-{form}-theirs"))
                ours = Path(place, f"{name}-{form}")
                wb.convert(folder, ours, to="mlx", towers=True, **options)
                read, made = (dict(tree_flatten(m.parameters())) for m in (load_model(ours), model))
                assert read.keys() == made.keys(), (name, form)
                assert all(mx.array_equal(read[key], made[key]) for key in made), (name, form)
                print(name, form, len(made), "parameters: loaded, equal")
    if check:
        assert record == recorded()
    else:
        GOLDEN.write_text(json.dumps(record, indent=0, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main("--check" in sys.argv)
