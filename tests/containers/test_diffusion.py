"""Image and video models by tensor names: each row against what diffusers makes of the same names, and row by row."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.containers.sniff import diffusion

RAW = tomllib.loads((resources.files("weighbridge.containers.sniff") / "diffusion.toml").read_text("utf-8"))
Shapes = dict[str, tuple[int, ...]]

# Row and variant -> what infer_diffusers_model_type calls it; None: a model that it doesn't know by these names, or
# calls by its default, "v1".
DIFFUSERS = {
    ("sd1", ""): "v1", ("sd1", "inpainting"): "inpainting", ("sd1", "Pix2Pix"): "instruct-pix2pix", ("sd2", ""): "v2",
    ("sd2", "inpainting"): "inpainting_v2", ("sd-upscale", ""): "upscale", ("sd3", "3.5 large"): "sd35_large",
    ("flux", ""): "flux-dev", ("flux", "[schnell]"): "flux-schnell", ("flux", "Fill"): "flux-fill",
    ("flux", "Depth"): "flux-depth", ("flux", "FLUX.1 [dev]"): "flux-dev", ("flux2", ""): "flux-2-dev",
    ("chroma", ""): "chroma", ("ltx", ""): "ltx-video", ("ltx", "13B"): "ltx-video-0.9.7", ("ltx2", ""): "ltx2-dev",
    ("hunyuan-video", ""): "hunyuan-video", ("z-image", ""): "z-image-turbo", ("auraflow", ""): "auraflow",
    ("hidream", ""): "hidream", ("sana", ""): "sana", ("mochi", ""): "mochi-1-preview",
    ("wan", "VACE 1.3B"): "wan-vace-1.3B", ("wan", "VACE 14B"): "wan-vace-14B", ("wan", "Animate"): "wan-animate-14B",
    ("wan", "text to video 1.3B"): "wan-t2v-1.3B", ("wan", "text to video 14B"): "wan-t2v-14B",
    ("wan", "image to video"): "wan-i2v-14B", ("wan-vae", ""): "wan-t2v-14B",
}  # fmt: skip
# What the conditions of diffusers ask besides those of the row.
MORE: dict[str, Shapes] = {
    "sd2": {"input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight": (320, 1024)},
    "auraflow": {"t_embedder.mlp.0.weight": (8, 8)},
    "wan": {"patch_embedding.weight": (8, 16, 1, 2, 2)},
    "flux": {"img_in.weight": (8, 64), "guidance_in.in_layer.bias": (8,)},
}


def shapes_of(row: dict[str, Any], variant: dict[str, Any] | None = None, prefix: str = "") -> Shapes:
    """The smallest set of tensors that a row, and a variant of it, describes."""
    out: Shapes = dict(MORE.get(row["id"], {}))
    for conditions in (row, variant or {}):
        out |= {name: (8, 8) for name in conditions.get("names", ())}
        for name in conditions.get("lacks", ()):
            out.pop(name, None)
    for conditions in (row, variant or {}):
        out |= {name: tuple(n or 8 for n in sizes) for name, sizes in conditions.get("shape", {}).items()}
    return {prefix + name: shape for name, shape in out.items()}


def cases() -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    for row in RAW["model"]:
        yield row, None
        yield from ((row, variant) for variant in row.get("variants", ()))


def title(row: dict[str, Any], variant: dict[str, Any] | None) -> str:
    return str((variant or row)["title"])


def convicts(known: diffusion.DiffusionTable) -> str | None:
    """The first case that a table gets wrong."""
    for row, variant in cases():
        for prefix in RAW["prefixes"][row["part"]]:
            found = diffusion.matches(shapes_of(row, variant, prefix), known)
            if [(m.row.id, m.prefix, m.row.gguf) for m in found] != [(row["id"], prefix, row.get("gguf"))]:
                return f"{row['id']} under {prefix!r}"
            if variant is not None and found[0].title != variant["title"]:
                return title(row, variant)
        for name in (variant or row).get("lacks", ()):
            found = diffusion.matches({**shapes_of(row, variant), name: (8, 8)}, known)
            if any(m.row.id == row["id"] and m.title == title(row, variant) for m in found):
                return f"{title(row, variant)} with {name}"
    return None


def test_every_row_is_found_and_no_other() -> None:
    assert convicts(diffusion.table()) is None


@pytest.mark.costly
@pytest.mark.parametrize(("row", "variant"), [pytest.param(*c, id=title(*c)) for c in cases()])
def test_diffusers_says_the_same(row: dict[str, Any], variant: dict[str, Any] | None) -> None:
    infer = pytest.importorskip("diffusers.loaders.single_file_utils").infer_diffusers_model_type
    known = next((DIFFUSERS[k] for k in DIFFUSERS if k == (row["id"], "") and variant is None), None)
    if variant is not None:
        named = (v for (id, part), v in DIFFUSERS.items() if id == row["id"] and part and part in variant["title"])
        known = next(named, None)
    if known is None:
        pytest.skip("diffusers doesn't recognise it by these names")
    prefix = "model.diffusion_model." if row["id"] in ("sd1", "sd2", "sd-upscale", "ltx2") else ""
    checkpoint = {n: SimpleNamespace(shape=s) for n, s in shapes_of(row, variant, prefix).items()}
    assert infer(checkpoint) == known


def test_a_file_that_fits_two_tables_is_said_to() -> None:
    rows = {row["id"]: row for row in RAW["model"]}
    both = shapes_of(rows["flux"]) | shapes_of(rows["mochi"])
    assert diffusion.describe(diffusion.matches(both)) == "FLUX.1 [dev] or Mochi 1 (both fit)"


def test_identify_and_inspect_name_all_parts(tmp_path: Path) -> None:
    rows = {row["id"]: row for row in RAW["model"]}
    shapes = shapes_of(rows["sd1"], prefix="model.diffusion_model.")
    shapes |= shapes_of(rows["vae"], prefix="first_stage_model.")
    shapes |= shapes_of(rows["clip"], prefix="cond_stage_model.transformer.")
    path = pictures.save(tmp_path / "sd.safetensors", pictures.values(shapes))
    line = "Stable Diffusion 1.x, with VAE (AutoencoderKL), CLIP text encoder"
    assert line in wb.identify(path).evidence
    assert wb.inspect(path).model.kind == line


Fault = Callable[[dict[str, Any]], None]


def faults() -> Iterator[tuple[str, Fault]]:
    for number, row in enumerate(RAW["model"]):
        yield f"{row['id']}: no row", partial(_drop, number)
        for at, conditions in enumerate([row, *row.get("variants", ())]):
            for column in ("names", "lacks"):
                for name in conditions.get(column, ()):
                    yield f"{row['id']}-{at}: {column} {name}", partial(_misspell, number, at, column, name)
            for name in conditions.get("shape", {}):
                yield f"{row['id']}-{at}: shape {name}", partial(_resize, number, at, name)
    for part, prefixes in RAW["prefixes"].items():
        for prefix in prefixes:
            yield f"prefix {part} {prefix}", partial(_forget, part, prefix)


def _drop(number: int, raw: dict[str, Any]) -> None:
    del raw["model"][number]


def _forget(part: str, prefix: str, raw: dict[str, Any]) -> None:
    raw["prefixes"][part].remove(prefix)


def _conditions(raw: dict[str, Any], number: int, at: int) -> Any:
    row = raw["model"][number]
    return row if at == 0 else row["variants"][at - 1]


def _misspell(number: int, at: int, column: str, name: str, raw: dict[str, Any]) -> None:
    """A name that must exist gets another spelling; one that must not is forgotten."""
    names = _conditions(raw, number, at)[column]
    place = names.index(name)
    names[place : place + 1] = [f"{name}s"] if column == "names" else []


def _resize(number: int, at: int, name: str, raw: dict[str, Any]) -> None:
    shapes = _conditions(raw, number, at)["shape"]
    shapes[name] = [n + 1 if n else n for n in shapes[name]]


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "fault"), [pytest.param(*f, id=f[0]) for f in faults()])
def test_every_condition_is_seen(name: str, fault: Fault) -> None:
    raw = copy.deepcopy(RAW)
    fault(raw)
    assert convicts(diffusion.build_table(raw)) is not None, name
