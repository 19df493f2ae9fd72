"""Runs one Llama in vLLM from several formats, through `load_format="weighbridge"`, and compares the tokens with those
of transformers.

    python tests/peers/run_vllm.py --python PYTHON        PYTHON: of an environment with vLLM (CPU is enough)
    python tests/peers/run_vllm.py --only bin mlx         these formats alone; the page isn't written

vLLM runs in a process of its own, which finds this package and its entry point on its path. Transformers takes the
same weights through `wb.from_pretrained`. The result is written to `docs/peers-vllm.md`. 1 if any token differs, or a
log-probability by more than 0.02.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peers-vllm.md"
PROMPT = list(range(5, 25))
TOKENS = 16
NEAR = 0.02  # of log-probabilities: both compute in f32, in another order
SETTINGS: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip

#: What runs inside vLLM's environment: a model folder, loader options as JSON, prompt, number of tokens.
INSIDE = """
import json, sys
import vllm

model, extra, config, prompt, tokens = sys.argv[1], *map(json.loads, sys.argv[2:])
llm = vllm.LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=128, skip_tokenizer_init=True,
               load_format="weighbridge", model_loader_extra_config=extra, **config)
wanted = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1, detokenize=False)
made = llm.generate([{"prompt_token_ids": prompt}], wanted)[0].outputs[0]
scores = [step[token].logprob for step, token in zip(made.logprobs, made.token_ids)]
print("RESULT" + json.dumps([vllm.__version__, list(made.token_ids), scores]))
"""


class Form(NamedTuple):
    """A format: what makes it from a folder, and how vLLM is asked for it. `beside`: it isn't the model's folder but
    the weights beside the original's config."""

    title: str
    make: Callable[[Path, Path], None]
    beside: bool = False
    config: str = "hf"


class Run(NamedTuple):
    title: str
    tokens: list[int]
    equal: bool
    distance: float


def original(target: Path) -> None:
    """A Llama of random weights, seeded."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=704, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=False,
        initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(target)


def as_pickle(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file

    target.mkdir()
    torch.save(load_file(source / "model.safetensors"), target / "pytorch_model.bin")
    (target / "config.json").write_bytes((source / "config.json").read_bytes())


def by_convert(**options: Any) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        import weighbridge as wb

        wb.convert(source, target, **options)

    return make


def forms() -> dict[str, Form]:
    import weighbridge as wb

    mlx = by_convert(to=wb.MlxOptions(q_bits=4, q_group_size=32))
    gptq = by_convert(to=wb.SchemeOptions(scheme="gptq", q_group_size=32))
    return {
        "hf": Form("safetensors, f32", lambda source, target: target.symlink_to(source)),
        "bin": Form("PyTorch checkpoint, f32", as_pickle),
        "q8.gguf": Form("GGUF of Q8_0", by_convert(dtype="q8_0", tokenizer=False), beside=True),
        "mlx": Form("MLX, 4 bits", mlx, config="weighbridge"),
        "gptq": Form("GPTQ, 4 bits, decoded", gptq, beside=True),
    }


def expected(path: Path) -> tuple[list[int], list[float]]:
    """Greedy tokens of transformers and their log-probabilities."""
    import torch
    import transformers

    import weighbridge as wb

    model: Any = wb.from_pretrained(transformers.LlamaForCausalLM, path, dtype="f32").eval()
    tokens, scores = [*PROMPT], []
    with torch.no_grad():
        for _ in range(TOKENS):
            found = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1].float(), -1)
            tokens.append(int(found.argmax()))
            scores.append(float(found.max()))
    return tokens[len(PROMPT) :], scores


def vllm_of(python: str, model: Path, form: Form, path: Path) -> tuple[str, list[int], list[float]]:
    """vLLM's version, greedy tokens and log-probabilities."""
    extra = {"weights": str(path)} if form.beside else {}
    config = {"config_format": form.config}
    arguments = [str(model if form.beside else path), *map(json.dumps, (extra, config, PROMPT, TOKENS))]
    with tempfile.TemporaryDirectory() as installed:
        _install(Path(installed))
        path_of = os.pathsep.join((str(ROOT / "src"), installed))
        done = subprocess.run(
            [python, "-c", INSIDE, *arguments],
            env={**os.environ, **SETTINGS, "PYTHONPATH": path_of}, capture_output=True, text=True,
        )  # fmt: skip
    results = [line.removeprefix("RESULT") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not results:
        raise SystemExit(f"vLLM failed on {form.title}:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    version, tokens, scores = json.loads(results[-1])
    return version, tokens, scores


def _install(folder: Path) -> None:
    """The entry point as an installed package has it."""
    info = folder / "weighbridge-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weighbridge\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nweighbridge = weighbridge.api.vllm:register\n")


def runs(python: str, only: list[str], work: Path) -> Iterator[tuple[str, Run]]:
    original(model := work / "original")
    for name, form in forms().items():
        if name not in only:
            continue
        form.make(model, path := work / name)
        want, near = expected(path)
        version, tokens, scores = vllm_of(python, model, form, path)
        distance = max(abs(a - b) for a, b in zip(near, scores, strict=True))
        run = Run(form.title, tokens, tokens == want, distance)
        print(f"{form.title}: {'equal' if run.equal else f'{tokens} instead of {want}'}, {distance:.4f}", flush=True)
        yield version, run


def page(version: str, found: list[Run]) -> str:
    rows = "\n".join(f"| {r.title} | {' '.join(map(str, r.tokens))} | {r.distance:.4f} |" for r in found)
    return f"""# vLLM, run by hand

<!-- written by tests/peers/run_vllm.py -->

vLLM {version} on a CPU, with a Llama of random weights in each format through `load_format="weighbridge"`, against
transformers with the same weights through `wb.from_pretrained`. All {TOKENS} greedy tokens are equal.

    python tests/peers/run_vllm.py --python PYTHON

| format | tokens | largest difference of a log-probability |
|---|---|--:|
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the python of an environment that has vLLM")
    parser.add_argument("--only", nargs="+", choices=forms(), help="these formats alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wb-vllm-") as work:
        done = list(runs(args.python, args.only or [*forms()], Path(work)))
    found = [run for _, run in done]
    bad = [run for run in found if not run.equal or run.distance > NEAR]
    if not bad and args.only is None:
        PAGE.write_text(page(done[0][0], found), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
