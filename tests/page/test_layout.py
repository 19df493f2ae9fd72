"""The maps of files in chromium: colours, names, layers, shards, members, the thumbnail; and the tabs of a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.containers.dcp_cases import unpack
from tests.containers.packed_files import small
from tests.page.conftest import Visits, until

import weighbridge as wb
from weighbridge.models.open import open_model
from weighbridge.page.data import PageData

pytestmark = pytest.mark.costly


def mapped(visit: Visits, url: str, **settings: Any) -> Any:
    page = visit(f"{url}&panel=layout", **settings)
    until(page, "[...document.querySelectorAll('canvas')].some((c) => c.names)")
    return page


def drawn(page: Any, number: int = 0) -> tuple[list[str], list[str]]:
    """The names of pieces and the layers at the side of a map."""
    canvas = page.locator("canvas").nth(number)
    names, layers = canvas.evaluate("canvas => [canvas.names, canvas.layers]")
    return names, layers


def test_pieces_have_names_and_lines_have_layers(visit: Visits, models: Path, model_url: str) -> None:
    page = mapped(visit, model_url)
    with open_model(models / "q4.gguf") as model:
        tensors = {entry.name for entry in model.index}
    names, layers = drawn(page)
    assert len(names) > 15
    assert all(
        any(tensor.removesuffix(".weight").endswith(n.removesuffix(".weight")) for tensor in tensors) for n in names
    )
    assert {"0", "1", "2"} <= set(layers) <= {"0", "0–1", "1", "1–2", "2"}


def test_colours_are_of_parts_layers_or_types(visit: Visits, model_url: str) -> None:
    """And the choice stands in the address."""
    page = mapped(visit, model_url)
    seen = {}
    for mode, word in (("Part", "attention"), ("Layer", "layer 2"), ("Type", "Q6_K")):
        page.get_by_role("group", name="Colour by").get_by_role("button", name=mode).click()
        until(page, f"document.querySelector('.keyed').innerText.includes('{word}')")
        seen[mode] = page.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    assert len(set(seen.values())) == 3
    assert "color=type" in page.url


def test_shards_are_one_above_the_other(visit: Visits, models: Path, tmp_path: Path) -> None:
    wb.convert(models / "llama", tmp_path / "shards", max_shard_size=2_000_000)
    files = sorted(file.name for file in (tmp_path / "shards").glob("*.safetensors"))
    with visit.served(tmp_path / "shards") as url:
        page = mapped(visit, url)
        until(page, f"[...document.querySelectorAll('canvas')].filter((c) => c.names).length === {len(files)}")
        assert [text.split()[0] for text in page.locator("main h3").all_inner_texts()] == files
        assert len(files) > 2
        assert all(names and layers for names, layers in (drawn(page, n) for n in range(len(files))))
    wb.export_view(tmp_path / "shards", tmp_path / "page.html", models / "q4.gguf")
    page = mapped(visit, f"{(tmp_path / 'page.html').as_uri()}#")
    until(page, f"[...document.querySelectorAll('canvas')].filter((c) => c.names).length === {len(files) + 1}")


def test_a_zip_is_shown_by_member(visit: Visits, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(300, 40)}, tmp_path / "m.pt")
    with visit.served(tmp_path / "m.pt") as url:
        page = mapped(visit, url)
        assert "m/data/0" in drawn(page)[0]
        assert all(name in page.locator(".keyed").inner_text() for name in ("m/data.pkl", "m/data/0", "directory"))


def test_a_tensor_under_the_pointer_is_described(visit: Visits, model_url: str) -> None:
    page = mapped(visit, model_url)
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 100)
    until(page, "document.querySelector('.readout')?.innerText.includes('512 × 256, Q4_K')")
    until(page, "document.querySelector('.thumbnail path')?.getAttribute('d').length > 50")


def test_the_tabs_of_a_phone_scroll_with_a_cue(visit: Visits, model_url: str) -> None:
    page = mapped(visit, model_url, viewport={"width": 390, "height": 844})
    assert page.locator(".cue.after").is_visible()
    page.locator(".cue.after").click()
    until(page, "document.querySelector('.tabs').dataset.more.includes('before')")
    page.get_by_role("button", name="Architecture").click()
    until(
        page,
        """(() => { const tab = document.querySelector('nav [aria-current]').getBoundingClientRect();
                    return tab.left >= 0 && tab.right <= 390; })()""",
    )
    title, choice = (page.locator(s).bounding_box() for s in ("h1", "header .choice"))
    assert title["y"] < choice["y"] + choice["height"]
    assert choice["y"] < title["y"] + title["height"] + 20


def test_data_files_of_a_distributed_checkpoint_have_maps(tmp_path: Path) -> None:
    """Their tensors are listed in another file."""
    with PageData(unpack("two", tmp_path)) as data:
        index = data.models[0].index
        for number, file in enumerate(index.files[1:], 1):
            layout = json.loads(data.answer("layout", {"model": "0", "file": str(number)}))
            named = {index.entries[label].name for label in layout["labels"] if isinstance(label, int)}
            assert named == {entry.name for entry in index.entries if entry.file == number}
            assert (layout["start"][0], layout["size"]) == (0, file.size)
        entry = next(entry for entry in index.entries if entry.file == 1)
        view = json.loads(
            data.answer("bytes", {"model": "0", "file": "1", "offset": str(entry.offset), "length": "16"})
        )
        assert view["regions"][0]["label"] == entry.name


def test_the_index_of_a_distributed_checkpoint_shows_its_opcodes(visit: Visits, tmp_path: Path) -> None:
    """With a legend of its own, whatever the maps of the other files are coloured by."""
    wb.export_view(unpack("two", tmp_path), tmp_path / "page.html")
    page = mapped(visit, f"{(tmp_path / 'page.html').as_uri()}#color=type")
    common, own = page.locator(".keyed").all_inner_texts()
    assert "F32" in common
    assert "header" in common
    assert own.split() == ["import", "call", "structure", "memo", "frame", "value"]
    painted = "canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 8, 900, 1).data.buffer)).size"
    assert page.locator("canvas").first.evaluate(painted) > 5


def test_sizes_are_those_on_disk(tmp_path: Path) -> None:
    """Of a packed file too, whose original is larger."""
    path = tmp_path / "packed.safetensors"
    path.write_bytes(small())
    with PageData(path) as data:
        files = json.loads(data.answer("start", {}))["models"][0]["files"]
        layout = json.loads(data.answer("layout", {"model": "0", "file": "0"}))
    assert [file["size"] for file in files] == [path.stat().st_size] == [layout["size"]]


#: The first column of a map that is painted.
LEFT = """all => all.map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 8, 90, 1);
    return [...Array(88).keys()].find((x) => [x, x + 1, x + 2].every((at) => data[at * 4 + 3] === 255));
})"""


def test_maps_of_shards_begin_at_one_line(visit: Visits, models: Path, tmp_path: Path) -> None:
    """Also that of a shard without layers, which has no brackets."""
    wb.convert(models / "llama", tmp_path / "shards", max_shard_size=66_000)
    wb.export_view(tmp_path / "shards", tmp_path / "page.html")
    page = mapped(visit, f"{(tmp_path / 'page.html').as_uri()}#")
    until(page, "[...document.querySelectorAll('canvas')].every((c) => c.names)")
    assert not all(layers for _, layers in (drawn(page, n) for n in range(page.locator("canvas").count())))
    assert len(set(page.locator("canvas").evaluate_all(LEFT))) == 1
