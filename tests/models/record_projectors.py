"""Records what the reference converter makes of towers: `python -m tests.models.record_projectors [NAME ...]`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.models.projector_cases import (
    ADDED,
    AS_PUBLISHED,
    CASES,
    FILES,
    FOLDERS,
    GOLDEN,
    OUTTYPES,
    RADIO,
    READ_BY,
    THINKERS,
    WITHOUT_CLASS,
    WITHOUT_REFERENCE,
    digests,
    published,
    with_unread,
    write_folder,
)
from tests.models.record_reference import record as keys_and_tensors

#: As the files on the Hub have it. The reference knows no other names.
_RENAMED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "llava": {
        f"vision_tower.{part}.": f"vision_tower.vision_model.{part}."
        for part in ("embeddings", "encoder", "head", "post_layernorm")
    },
    "granite4_vision": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "lfm2_vl": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "internvl": {
        "vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector.",
        "language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head.",
    },
}  # fmt: skip


def of_transformers(name: str) -> dict[str, Any]:
    """The config of a case as transformers saves it, and the names and shapes of its tensors."""
    from safetensors import safe_open

    class_, arguments, preprocessor = CASES[name]
    if name in WITHOUT_CLASS:
        further = {"files": files} if (files := FILES.get(name)) and name not in READ_BY else {}
        return {"config": arguments, "preprocessor": preprocessor, "names": WITHOUT_CLASS[name], **further}
    model = class_of_transformers(class_)
    config = model.config_class(**arguments)
    with tempfile.TemporaryDirectory() as folder:
        model(config).save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            names = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    if class_ in THINKERS:
        outer, model_type = THINKERS[class_]
        saved = {"architectures": [outer], "model_type": model_type, "thinker_config": saved}
        names = {f"thinker.{published(key)}": shape for key, shape in names.items()}
    saved = laid_over(saved, ADDED.get(name, {}))
    starts = _RENAMED.get(saved["model_type"], {})
    names = {renamed(key, starts): shape for key, shape in names.items()}
    files = {"files": FILES[name]} if name in FILES else {}
    return {"config": saved, "preprocessor": preprocessor, "names": with_unread(name, names), **files}


def class_of_transformers(name: str) -> Any:
    """The class of a case by its short name."""
    import transformers

    return getattr(transformers, f"{name}ForConditionalGeneration", None) or getattr(transformers, name)


def renamed(name: str, starts: Mapping[str, str]) -> str:
    """The name with its start replaced."""
    old = next((start for start in starts if name.startswith(start)), "")
    return starts.get(old, "") + name.removeprefix(old)


def laid_over(config: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """The config with these entries, object by object; without those that are None."""
    nested = {key: laid_over(config.get(key, {}), value) for key, value in added.items() if isinstance(value, dict)}
    absent = [key for key, value in added.items() if value is None]
    return {key: value for key, value in {**config, **added, **nested}.items() if key not in absent}


def by_reference(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The reference's keys and tensors of a record, by the requested type."""
    from tests.oracles import tree

    root = str(tree.require())
    sys.path[:0] = [f"{root}/gguf-py"]
    sys.path.append(root)  # last: it has a package `tests` too
    import gguf
    import torch
    from conversion import get_model_class  # type: ignore[import-not-found]

    norms = gguf.TensorNameMap.block_mappings_cfg  # without these of Gemma 3n, at which it fails
    norms[gguf.MODEL_TENSOR.A_ENC_CONV1D_NORM] += ("model.audio_tower.subsample_conv_projection.conv_{bid}.norm",)
    out: dict[str, Any] = {"files": []}
    towers = record["config"].get("vision_config", {}).get("architectures", record["config"]["architectures"])
    class_, unread = READ_BY.get(name, (towers[0], "/"))
    made = get_model_class(class_, mmproj=True)
    given = {"hparams": record["config"]} if name in AS_PUBLISHED else {}
    record = {**record, "names": {key: n for key, n in record["names"].items() if not key.startswith(unread)}}
    if towers == ["RADIOModel"]:
        for constant, value in RADIO.items():
            assert isinstance(getattr(made, constant), int)
            setattr(made, constant, value)
    for named in FOLDERS:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            source, half = write_folder(record, Path(folder) / named), gguf.LlamaFileType.MOSTLY_F16
            model = made(source, half, Path(folder), **deepcopy(given))
            model.write()
            out["files"].append(model.fname_out.name)
    for outtype, number in OUTTYPES.items():
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            source, target = write_folder(record, Path(folder) / "tiny-model"), Path(folder) / "out.gguf"
            made(source, gguf.LlamaFileType(number), target, **deepcopy(given)).write()
            out[outtype] = {"keys": keys_and_tensors(gguf, target)["keys"], "tensors": digests(target)}
    return out


def main(names: list[str]) -> None:
    for name in names or CASES:
        record = of_transformers(name)
        made = {} if name in WITHOUT_REFERENCE else {"reference": by_reference(name, record)}
        (GOLDEN / f"{name}.json").write_text(json.dumps({**record, **made}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
