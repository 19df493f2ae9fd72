"""Loads packed weights with `wb.from_pretrained(..., packed=True)` and with transformers itself, and compares the
logits bit for bit.

    python tests/peers/run_packed.py               in an environment with this package and the methods' libraries
    python tests/peers/run_packed.py --only gptq   these alone; the page isn't written

The result is written to `docs/peers-packed.md`. 1 if any logit differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers

import weighbridge as wb

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peers-packed.md"
IDS = [[1, 5, 7, 2, 250, 9]]
CLASS: Any = transformers.LlamaForCausalLM


class Method(NamedTuple):
    """What packs a folder, the libraries that run it, and the options both loaders get."""

    make: Callable[[Path, Path], None]
    libraries: tuple[str, ...]
    dtype: str = "f32"


def original(target: Path) -> None:
    """A Llama of random weights, seeded."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=False,
        initializer_range=0.2,
    )  # fmt: skip
    CLASS(config).to(torch.bfloat16).save_pretrained(target)


def by_us(**options: Any) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        wb.convert(source, target, to=wb.SchemeOptions(**options))

    return make


def by_transformers(config: Callable[[], Any]) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        made = CLASS.from_pretrained(source, quantization_config=config(), dtype=torch.bfloat16, device_map="cpu")
        made.save_pretrained(target)

    return make


def torchao(name: str) -> Method:
    def config() -> Any:
        from torchao import quantization

        return transformers.TorchAoConfig(getattr(quantization, name)())

    return Method(by_transformers(config), ("torchao",), "bf16")


def bitsandbytes(**options: Any) -> Method:
    return Method(by_transformers(lambda: transformers.BitsAndBytesConfig(**options)), ("bitsandbytes",), "bf16")


GPTQ, TENSORS = ("gptqmodel", "optimum"), ("compressed-tensors",)
METHODS: Mapping[str, Method] = MappingProxyType({
    "gptq": Method(by_us(scheme="gptq"), GPTQ),
    "gptq, groups of 32": Method(by_us(scheme="gptq", q_group_size=32), GPTQ),
    "gptq, 8 bits": Method(by_us(scheme="gptq", q_bits=8), GPTQ),
    "awq": Method(by_us(scheme="awq"), GPTQ[:1]),
    "awq, groups of 32": Method(by_us(scheme="awq", q_group_size=32), GPTQ[:1]),
    **{f"torchao, {name.removesuffix('Config')}": torchao(name) for name in (
        "Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig",
        "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig",
    )},
    "bitsandbytes, nf4": bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes, fp4, nested": bitsandbytes(load_in_4bit=True, bnb_4bit_use_double_quant=True),
    "bitsandbytes, int8": bitsandbytes(load_in_8bit=True),
    "compressed-tensors, W4A16": Method(by_us(scheme="w4a16"), TENSORS),
    "compressed-tensors, W8A8": Method(by_us(scheme="w8a8"), TENSORS),
    "compressed-tensors, FP8": Method(by_us(scheme="fp8_dynamic"), TENSORS),
})  # fmt: skip


class Run(NamedTuple):
    title: str
    libraries: str
    module: str
    equal: bool


def runs(only: list[str], work: Path) -> Iterator[Run]:
    original(source := work / "original")
    for number, name in enumerate(only):
        method = METHODS[name]
        method.make(source, path := work / str(number))
        want = CLASS.from_pretrained(path, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[method.dtype])
        found: Any = wb.from_pretrained(CLASS, path, packed=True, dtype=method.dtype)
        kind, other = (_tensors(model.model.layers[1].mlp.up_proj) for model in (found, want))  # before the first run
        with torch.no_grad():
            one, two = (model(torch.tensor(IDS)).logits for model in (found, want))
        same = kind == other and torch.equal(one, two) and bool(one.isfinite().all())
        libraries = ", ".join(f"{library} {version(library)}" for library in method.libraries)
        yield Run(name, libraries, kind, same)


def _tensors(module: Any) -> str:
    """A module's class, and its tensors: those of a class of their own with it."""
    plain = (torch.Tensor, torch.nn.Parameter)
    found = [n if type(t) in plain else f"{n}: {type(t).__name__}" for n, t in module.state_dict().items()]
    return f"{type(module).__name__} ({', '.join(found)})"


def page(found: list[Run]) -> str:
    rows = "\n".join(f"| {r.title} | {r.libraries} | `{r.module}` |" for r in found)
    return f"""# Packed modules of transformers, run by hand

<!-- written by tests/peers/run_packed.py -->

transformers {transformers.__version__} with torch {torch.__version__} on a CPU: a Llama of random weights, packed by
each method and loaded by `wb.from_pretrained(..., packed=True)` and by transformers' own `from_pretrained`. The modules
are the same and all logits are equal, bit for bit.

    python tests/peers/run_packed.py

| method | libraries | module (its tensors) |
|---|---|---|
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=METHODS, help="these methods alone")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="wb-packed-") as work:
        for run in runs(args.only or [*METHODS], Path(work)):
            print(f"{run.title}: {run.module}, {'equal' if run.equal else 'DIFFERS'}", flush=True)
            found.append(run)
    if any(not run.equal for run in found):
        return 1
    if args.only is None:
        PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
