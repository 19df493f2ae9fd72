"""Records the tensors of the VAEs that ComfyUI and diffusers name differently, at their published sizes:
`python -m tests.models.record_picture_vaes COMFYUI DIFFUSERS FLUX2`, three checkouts (Comfy-Org/ComfyUI of 2025-10-12,
huggingface/diffusers of 2026-08-23, black-forest-labs/flux2 of 2025-12-01).

Each record is name in the single file -> [shape, name in diffusers or null, shape there if it is another]. The single
file's names are those of the classes that load it. diffusers' scripts rename them, and ComfyUI's function those of
HunyuanVideo, whose released file has diffusers' names. diffusers' class decides what it holds.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

RECORD = Path(__file__).parent / "golden" / "picture_vaes.json"
Tensors = dict[str, Any]
LTX = {"ltx-vae": "0.9.0", "ltx-vae-0.9.1": "0.9.1", "ltx-vae-0.9.5": "0.9.5"}


def script(checkout: Path, name: str) -> ModuleType:
    """A script of diffusers as a module."""
    spec = importlib.util.spec_from_file_location(name, checkout / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "argv", ["script"]):
        spec.loader.exec_module(module)
    return module


def comfy(checkout: Path, module: str) -> Any:
    sys.path.insert(0, str(checkout))
    cli = importlib.import_module("comfy.cli_args")
    cli.args.cpu = True
    return importlib.import_module(f"comfy.{module}")


def on_meta(make: Callable[[], Any]) -> Any:
    import torch

    with torch.device("meta"):
        return make()


def record(single: Tensors, named: Callable[[Tensors], Tensors], held: Tensors) -> dict[str, Any]:
    """`named`: renames tensors. `held`: those of diffusers' class."""
    out: dict[str, Any] = {}
    marks = {id(tensor): name for name, tensor in single.items()}
    assert len(marks) == len(single)
    to = {marks[id(tensor)]: name for name, tensor in named(dict(single)).items()}
    for name, tensor in single.items():
        new = to.get(name, name if name in held else None)
        out[name] = row(tensor.shape, new, held)
    missing = set(held) - {columns[1] for columns in out.values()}
    assert not missing, missing
    return out


def row(shape: Any, new: str | None, held: Tensors) -> list[Any]:
    other = [] if new is None or tuple(held[new].shape) == tuple(shape) else [list(held[new].shape)]
    return [list(shape), new, *other]


class Marked:
    """A tensor's shape, which survives reshapes as the same object."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape
        self.ndim = len(shape)

    def reshape(self, *shape: int) -> Marked:
        return self

    def __getitem__(self, _: Any) -> Marked:
        return self


def marked(tensors: Tensors) -> Tensors:
    return {name: Marked(tuple(tensor.shape)) for name, tensor in tensors.items()}


def ltx(checkouts: list[Path], version: str) -> dict[str, Any]:
    from diffusers import AutoencoderKLLTXVideo
    from diffusers.loaders.single_file_utils import convert_ltx_vae_checkpoint_to_diffusers

    autoencoder = comfy(checkouts[0], "ldm.lightricks.vae.causal_video_autoencoder")
    single = on_meta(lambda: autoencoder.VideoVAE(version=[*LTX.values()].index(version)))
    config = script(checkouts[1], "convert_ltx_to_diffusers").get_vae_config(version)
    held = on_meta(lambda: AutoencoderKLLTXVideo(**config))

    def named(tensors: Tensors) -> Tensors:
        result: Tensors = convert_ltx_vae_checkpoint_to_diffusers({f"vae.{n}": t for n, t in tensors.items()})
        return result

    return record(marked(single.state_dict()), named, held.state_dict())


def wan22(checkouts: list[Path]) -> dict[str, Any]:
    import torch
    from diffusers import AutoencoderKLWan

    vae = comfy(checkouts[0], "ldm.wan.vae2_2")
    sizes = {"dim": 160, "z_dim": 48, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": []}
    single = on_meta(lambda: vae.WanVAE(**sizes, temperal_downsample=[False, True, True], dropout=0.0))
    module = script(checkouts[1], "convert_wan_to_diffusers")
    config = {
        key: value for key, value in module.vae22_diffusers_config.items() if key != "clip_output"
    }  # no longer one
    held = on_meta(lambda: AutoencoderKLWan(**config))
    seen: list[Tensors] = []

    def named(tensors: Tensors) -> Tensors:
        fake = mock.Mock(load_state_dict=lambda state, **_: seen.append(state))
        with (
            mock.patch.object(module, "hf_hub_download"), mock.patch.object(torch, "load", return_value=tensors),
            mock.patch.object(module, "AutoencoderKLWan", return_value=fake),
        ):  # fmt: skip
            module.convert_vae_22()
        return seen[0]

    return record(marked(single.state_dict()), named, held.state_dict())


def hunyuan_video(checkouts: list[Path]) -> dict[str, Any]:
    from diffusers import AutoencoderKLHunyuanVideo

    models = comfy(checkouts[0], "ldm.models.autoencoder")
    convert = comfy(checkouts[0], "diffusers_convert").convert_vae_state_dict
    sizes = {
        "double_z": True, "z_channels": 16, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128, "dropout": 0.0,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "conv3d": True, "time_compress": 4,
    }  # fmt: skip
    single = on_meta(lambda: models.AutoencoderKL(ddconfig=sizes, embed_dim=16)).state_dict()
    held = marked(on_meta(AutoencoderKLHunyuanVideo).state_dict())
    back = {id(tensor): name for name, tensor in held.items()}
    names = {name: back[id(tensor)] for name, tensor in convert(dict(held)).items()}
    assert set(names) == set(single)
    return {name: row(t.shape, names[name], held) for name, t in single.items()}


def flux2(checkouts: list[Path]) -> dict[str, Any]:
    from diffusers import AutoencoderKLFlux2

    sys.path.insert(0, str(checkouts[2] / "src"))
    autoencoder = importlib.import_module("flux2.autoencoder")
    single = on_meta(lambda: autoencoder.AutoEncoder(autoencoder.AutoEncoderParams()))
    module = script(checkouts[1], "convert_flux2_to_diffusers")
    held = on_meta(AutoencoderKLFlux2)
    return record(
        marked(single.state_dict()),
        lambda tensors: dict(module.convert_flux2_vae_checkpoint_to_diffusers(tensors, held.config)),
        held.state_dict(),
    )


def main() -> None:
    checkouts = [Path(argument) for argument in sys.argv[1:4]]
    sys.argv = sys.argv[:1]
    found = {model: ltx(checkouts, version) for model, version in LTX.items()}
    found |= {"wan22-vae": wan22(checkouts), "hunyuan-video-vae": hunyuan_video(checkouts)}
    found["flux2-vae"] = flux2(checkouts)
    lines = [f' "{model}": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in each.items()) + "\n }"
             for model, each in found.items()]  # fmt: skip
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
