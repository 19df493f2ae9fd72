"""What each file type costs: perplexity on held-out text, and how far the predictions move from those of F16.

    python benchmarks/quantize_quality.py MODEL TEXT [--imatrix FILE] [--types Q8_0,Q4_K_M,...] [--chunks 40]

MODEL is whatever `wb quantize` reads, really trained; TEXT one that it was not trained on. Logits are llama.cpp's (the
wheel xllamacpp), on chunks of 512 tokens of which the second half counts, as llama-perplexity does it. KL: mean
Kullback-Leibler divergence of a token's distribution from that of F16, in nats. Same: how often the most likely token
is F16's. A type written with its bits per weight (`4.5`) is one that --target-bpw chooses.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.oracles import llamacpp  # noqa: E402

import weighbridge  # noqa: E402
from weighbridge.base.errors import UnsupportedError  # noqa: E402

CHUNK = 512
llamacpp.THREADS = 1  # its threads wait for each other by spinning, which a machine with other work pays dearly
TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q5_1,Q5_0,Q4_K_M,Q4_K_S,Q4_1,Q4_0,Q3_K_L,Q3_K_M,Q3_K_S,Q2_K,IQ4_NL,IQ4_XS,IQ3_M,IQ3_S"
WITH_MATRIX = "Q4_K_M,Q4_K_S,Q3_K_M,Q3_K_S,Q2_K,Q2_K_S,IQ4_XS,IQ3_XXS,IQ2_M,IQ2_XS,IQ2_XXS,IQ1_M"
F32 = NDArray[np.float32]


class Measured(NamedTuple):
    """Of one file: mean negative log-likelihood and its standard error, divergence, agreement, bytes, bits."""

    nll: float
    error: float
    kl: float
    same: float
    nbytes: int
    bits: float


def log_probabilities(path: Path, chunks: NDArray[np.int64]) -> Iterator[F32]:
    """Of each chunk, for the positions that count: [CHUNK / 2 - 1, tokens]."""
    with llamacpp.Model(path) as model:
        for chunk in chunks:
            found = model.logits(chunk.tolist())[CHUNK // 2 : -1]
            found -= found.max(axis=1, keepdims=True)
            yield found - np.log(np.exp(found).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)


def measure(path: Path, chunks: NDArray[np.int64], reference: Sequence[F32], bits: float) -> Measured:
    nlls, kls, same = [], [], []
    for chunk, found, expected in zip(chunks, log_probabilities(path, chunks), reference, strict=True):
        wanted = chunk[CHUNK // 2 + 1 :]
        nlls.append(-found[np.arange(len(wanted)), wanted])
        kls.append((np.exp(expected) * (expected - found)).sum(axis=1, dtype=np.float64))
        same.append(found.argmax(axis=1) == expected.argmax(axis=1))
    nll = np.concatenate(nlls)
    error = nll.std() / np.sqrt(nll.size)
    kl, agree = float(np.concatenate(kls).mean()), float(np.concatenate(same).mean())
    return Measured(float(nll.mean()), float(error), kl, agree, path.stat().st_size, bits)


def quantized(source: Path, target: Path, ftype: str, imatrix: Path | None) -> float:
    """The file, and its bits per weight."""
    settings: dict[str, Any] = {"imatrix": imatrix, "overwrite": True}
    name = ftype
    if ftype[0].isdigit():
        name, settings["target_bpw"] = "", float(ftype)
    with weighbridge.plan_quantize(source, target, name, **settings) as plan:
        plan.run()
        return plan.bits


def row(name: str, m: Measured) -> str:
    ppl, error = np.exp(m.nll), np.exp(m.nll) * m.error
    size = f"{m.nbytes / 1e6:.2f} MB | {m.bits:.2f}"
    return f"| {name} | {size} | {ppl:.3f} ± {error:.3f} | {m.kl:.5f} | {100 * m.same:.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--with-imatrix", default=WITH_MATRIX)
    parser.add_argument("--chunks", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        reference, target = Path(made) / "f16.gguf", Path(made) / "out.gguf"
        bits = quantized(args.model, reference, "F16", None)
        with llamacpp.Model(reference) as model:
            ids = np.array(model.tokenize(args.text.read_text("utf-8"), add_special=False))
            first = model.tokenize("")
        chunks = ids[: len(ids) // CHUNK * CHUNK].reshape(-1, CHUNK)[: args.chunks].copy()
        if first:  # a model that begins every text with a token of its own sees it in each chunk
            chunks[:, 0] = first[0]
        expected = list(log_probabilities(reference, chunks))
        print("| type | file | bits per weight | perplexity | KL | same token |\n|---|---|---|---|---|---|")
        print(row("F16", measure(reference, chunks, expected, bits)), flush=True)
        for imatrix, types in ((None, args.types), (args.imatrix, args.with_imatrix if args.imatrix else "")):
            for ftype in filter(None, types.split(",")):
                try:
                    bits = quantized(args.model, target, ftype, imatrix)
                except UnsupportedError as error:
                    print(f"{ftype}: {error}", file=sys.stderr)
                    continue
                label = ftype + " with imatrix" * (imatrix is not None)
                print(row(label, measure(target, chunks, expected, bits)), flush=True)


if __name__ == "__main__":
    main()
