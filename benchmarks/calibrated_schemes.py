"""What a text gains for quantized folders: KL divergence from the source on held-out text, rounded to nearest and with
`--text`, at the same size.

    python benchmarks/calibrated_schemes.py MODEL CALIBRATION HELDOUT [--chunks 16] [--schemes "w4a16,gptq --asym"]

MODEL is a folder that was really trained, and the two texts don't overlap. Both runs are `wb convert --scheme`; the
divergence is that of `wb quality`, with standard errors from the chunks' means.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import weighbridge

SCHEMES = "w8a8,w4a16,w4a16 --asym,w3a16,w3a16 --asym,gptq,awq"


def options(words: str) -> dict[str, Any]:
    """The options of a scheme, written as on the command line."""
    name, *flags = words.split()
    return {"scheme": name, **({"sym": False} if "--asym" in flags else {})}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("calibration")
    parser.add_argument("heldout")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--schemes", default=SCHEMES)
    given = parser.parse_args()
    print("| scheme | file | KL, rounded to nearest | KL, `--text` | ratio | same token |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        for words in given.schemes.split(","):
            rows = []
            for number, text in enumerate(({}, {"text": [given.calibration], "chunks": given.chunks})):
                out = Path(place) / f"{number}"
                weighbridge.convert(given.model, out, overwrite=True, replace_folder=True, **options(words), **text)
                report = weighbridge.quality(given.model, out, text=[given.heldout], chunks=given.chunks)
                size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
                rows.append((size, report))
            (size, nearest), (same_size, found) = rows
            assert size == same_size
            assert nearest.kl is not None and found.kl is not None and found.same_top is not None  # noqa: PT018
            kls = " | ".join(f"{one.kl.value:.5f} ± {one.kl.error:.5f}" for one in (nearest, found) if one.kl)
            ratio, same = found.kl.value / nearest.kl.value, 100 * found.same_top.value
            print(f"| `{words}` | {size / 1e6:.2f} MB | {kls} | {ratio:.2f} | {same:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
