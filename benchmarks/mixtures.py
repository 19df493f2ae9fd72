"""Types by effect against llama.cpp's mixtures of the same size, on trained models (quality.toml, trained_models.py).

    python benchmarks/mixtures.py NAME MODEL CALIBRATION HELDOUT [--chunks 16]

Writes recipes/NAME.toml: for each size the types that --target-size chose, and the measured figures. Sizes are those of
mixtures, and of one type for all (--pure). Importance matrices and effects come from the first text, figures from what
the second has not in common with it, by llama.cpp. --types takes the types from the recipe instead of choosing them.
`python benchmarks/recipes.py` then writes tables and curves of docs/quantize-quality.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import recipes  # noqa: E402
from quantize_quality import CHUNK, log_probabilities, measure, quantized  # noqa: E402
from tests.oracles import llamacpp  # noqa: E402

import weighbridge  # noqa: E402
from weighbridge.conversion.options import QuantizeOptions  # noqa: E402
from weighbridge.conversion.quantize.plan import build  # noqa: E402
from weighbridge.forward.computed import ComputedModel  # noqa: E402
from weighbridge.forward.effects import Measurement  # noqa: E402
from weighbridge.forward.options import TextOptions  # noqa: E402
from weighbridge.forward.texts import chunks_of  # noqa: E402
from weighbridge.models.open import open_model  # noqa: E402

MIXTURES: Final = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K")
#: Single types, and the mixture whose name --pure takes.
PURE: Final = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "IQ4_XS": "IQ4_XS"}


#: Chunks of the calibration text for the importance matrix, and at most for the effects.
MATRIX_CHUNKS: Final = 40


class Judge:
    """llama.cpp on the same tokens: bytes, divergence from F16 and share of equal likeliest tokens of a file."""

    def __init__(self, model: Path, text: str, chunks: int, folder: Path) -> None:
        self.target, reference = folder / "out.gguf", folder / "f16.gguf"
        quantized(model, reference, "F16", None)
        with llamacpp.Model(reference) as loaded:
            ids, first = np.array(loaded.tokenize(text, add_special=False)), loaded.tokenize("")
        self.chunks = ids[: len(ids) // CHUNK * CHUNK].reshape(-1, CHUNK)
        self.chunks = self.chunks[np.linspace(0, len(self.chunks) - 1, chunks).astype(int)].copy()
        if first:
            self.chunks[:, 0] = first[0]
        self.expected = list(log_probabilities(reference, self.chunks))
        nll = np.concatenate(
            [-p[np.arange(len(p)), c[CHUNK // 2 + 1 :]] for p, c in zip(self.expected, self.chunks, strict=True)]
        )
        self.perplexity = float(np.exp(nll.mean()))

    def __call__(self) -> tuple[int, float, float]:
        found = measure(self.target, self.chunks, self.expected, 0)
        return found.nbytes, float(f"{found.kl:.4g}"), round(found.same, 4)


def chosen(model: Path, matrix: Path, calibration: Path, sizes: Sequence[int]) -> Iterator[dict[str, str]]:
    """The types for each size. Effects are measured once."""
    measured: dict[str, list[Any]] = {}
    with open_model(model) as opened:
        options = TextOptions(text=[str(calibration)], chunks=MATRIX_CHUNKS)
        measurement = Measurement(ComputedModel(opened), chunks_of(opened, options), options.chunks, None)

        def effects(inputs: Any, offers: Any) -> Mapping[str, list[Any]]:
            measured.update(measured or measurement.effects(inputs, offers))
            return measured

        for size in sizes:
            plan = build(opened, "out.gguf", "", QuantizeOptions(imatrix=matrix, target_size=size), effects=effects)
            yield {row.name: row.target for row in plan.rows if row.source != row.target}


def contenders(model: Path, matrix: Path, judge: Judge) -> Iterator[tuple[str, dict[str, tuple[int, float, float]]]]:
    """Of each size: mixtures with an importance matrix and without, or one type for all."""
    for name in MIXTURES:
        found = {}
        for label, imatrix in ((name, None), (f"{name} imatrix", matrix)):
            quantized(model, judge.target, name, imatrix)
            found[label] = judge()
        yield name, found
    for name, mixture in PURE.items():
        weighbridge.quantize(model, judge.target, mixture, imatrix=matrix, pure=True, overwrite=True)
        yield f"{name} pure", {f"{name} pure, imatrix": judge()}


def compare(given: argparse.Namespace) -> None:
    path = recipes.FOLDER / f"{given.name}.toml"
    saved = tomllib.loads(path.read_text("utf-8"))["size"] if given.types or given.contenders else []
    with tempfile.TemporaryDirectory() as made:
        matrix, whole = Path(made) / "imatrix.gguf", Path(made) / "with-output.gguf"
        heldout = recipes.disjoint(given.heldout.read_text("utf-8"), given.calibration.read_text("utf-8"))
        weighbridge.imatrix(given.model, matrix, text=[str(given.calibration)], chunks=MATRIX_CHUNKS)
        weighbridge.imatrix(
            given.model, whole, text=[str(given.calibration)], chunks=MATRIX_CHUNKS, process_output=True
        )
        judge = Judge(given.model, heldout, given.chunks, Path(made))
        rows: list[dict[str, Any]] = []
        kept = ((row["name"], row["contenders"]) for row in saved)
        for label, found in kept if given.contenders else contenders(given.model, matrix, judge):
            rows.append({"name": label, "contenders": found})
            print(label, found, flush=True)
        sizes = [max(f[0] for f in row["contenders"].values()) for row in rows]
        again = (recipes.unpacked(row["types"]) for row in saved)
        types = again if given.types else chosen(given.model, whole, given.calibration, sizes)
        for row, size, one in zip(rows, sizes, types, strict=True):
            settings = {"imatrix": whole, "tensor_type": recipes.tensor_types(one), "overwrite": True}
            weighbridge.quantize(given.model, judge.target, "Q8_0", **settings)
            row |= {"effects": judge(), "types": recipes.packed(one)}
            assert row["effects"][0] <= size
            print(row["name"], row["effects"], flush=True)
    head = {"title": given.title or given.name, "perplexity": round(judge.perplexity, 2), "chunks": given.chunks}
    path.write_text(recipes.dumped(head, rows), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    for word in ("model", "calibration", "heldout"):
        parser.add_argument(word, type=Path)
    parser.add_argument("--title", help="in the tables, in place of the name")
    parser.add_argument("--chunks", type=int, default=16, help="that measure")
    parser.add_argument("--types", action="store_true", help="take the types from the recipe")
    parser.add_argument("--contenders", action="store_true", help="take the figures of the other files from the recipe")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
