"""Runs one Llama in vLLM from several formats and compares the tokens with those of transformers.

    python tests/peers/run_vllm.py --python PYTHON        PYTHON: of an environment with vLLM (CPU is enough)
    python tests/peers/run_vllm.py --only bin mlx         these alone; the page isn't written

vLLM runs in a process of its own, which finds this package and its entry point on its path, and gets a text as its
prompt; the last run is `vllm serve`, asked over HTTP. Transformers takes the same weights through `wb.from_pretrained`.
The result is written to `docs/peers-vllm.md`. 1 if any token differs, or a log-probability by more than 0.02.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peers-vllm.md"
PROMPT = "Weights of a model lie in one file, and a file has rows of blocks."
TOKENS = 16
NEAR = 0.02  # of log-probabilities: both compute in f32, in another order
CUT = "\ufffd"  # for the first bytes of a character at the end, which the server leaves out
SETTINGS: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip

#: What runs inside vLLM's environment: a model, options of its engine as JSON, prompt, number of tokens.
INSIDE = """
import json, sys
import vllm

model, options, prompt, tokens = sys.argv[1], *map(json.loads, sys.argv[2:])
llm = vllm.LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=128, **options)
wanted = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=1)
found = llm.generate([prompt], wanted)[0]
made = found.outputs[0]
scores = [step[token].logprob for step, token in zip(made.logprobs, made.token_ids)]
print("RESULT" + json.dumps([vllm.__version__, list(found.prompt_token_ids), list(made.token_ids), scores]))
"""
OURS: Mapping[str, Any] = {"load_format": "weighbridge"}


class Form(NamedTuple):
    """A format: what makes it from a folder, what of it vLLM's model is, and with which options. `model`: the file in
    it; None where the model is the original's folder, with these weights beside it."""

    title: str
    make: Callable[[Path, Path], None]
    options: Mapping[str, Any] = MappingProxyType({})
    model: str | None = ""


class Expected(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    scores: list[float]
    text: str


class Run(NamedTuple):
    title: str
    tokens: list[int]
    equal: bool
    distance: float


def original(target: Path) -> None:
    """A Llama of random weights, seeded, with a tokenizer that is trained on this file."""
    import tokenizers
    import torch
    import transformers

    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator([__doc__ or "", PROMPT] * 4, vocab_size=512, show_progress=False)
    size = 704
    words.add_tokens([f"<{n}>" for n in range(words.get_vocab_size(), size - 1)])
    words.add_special_tokens(["<end>"])
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=256, tie_word_embeddings=False,
        initializer_range=0.2, bos_token_id=size - 1, eos_token_id=size - 1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(target)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=words._tokenizer, eos_token="<end>")
    words.save_pretrained(target)


def as_pickle(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file

    shutil.copytree(source, target, ignore=lambda _, names: [n for n in names if n.endswith(".safetensors")])
    torch.save(load_file(source / "model.safetensors"), target / "pytorch_model.bin")


def as_shards(source: Path, target: Path) -> None:
    import transformers

    shutil.copytree(source, target, ignore=lambda _, names: [n for n in names if n.endswith(".safetensors")])
    transformers.LlamaForCausalLM.from_pretrained(source).save_pretrained(target, max_shard_size="1MB")


def as_copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


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
        "hf": Form("safetensors, f32", lambda source, target: target.symlink_to(source), OURS),
        "shards": Form("safetensors, f32, in shards", as_shards, OURS),
        "file": Form("safetensors, f32, one file", as_copy, model="model.safetensors"),
        "bin": Form("PyTorch checkpoint, f32", as_pickle, OURS),
        "q8.gguf": Form("GGUF of Q8_0", by_convert(dtype="q8_0")),
        "split.gguf": Form(
            "GGUF of F16, in shards", by_convert(dtype="f16", max_shard_size=2**20), model="split-00001-of-*.gguf"
        ),
        "mlx": Form("MLX, 4 bits", mlx),
        "gptq": Form("GPTQ, 4 bits, decoded, beside another folder", gptq, OURS, model=None),
    }


def expected(folder: Path, path: Path) -> Expected:
    """Greedy tokens of transformers and their log-probabilities, with the tokenizer in `folder`."""
    import torch
    import transformers

    import weighbridge as wb

    words: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = wb.from_pretrained(transformers.LlamaForCausalLM, path, dtype="f32").eval()
    prompt = list(words(PROMPT).input_ids)
    tokens, scores = [*prompt], []
    with torch.no_grad():
        for _ in range(TOKENS):
            found = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1].float(), -1)
            tokens.append(int(found.argmax()))
            scores.append(float(found.max()))
    made = tokens[len(prompt) :]
    return Expected(prompt, made, scores, words.decode(made))


@contextmanager
def environment() -> Iterator[dict[str, str]]:
    """Variables for a vLLM that has this package installed."""
    with tempfile.TemporaryDirectory() as installed:
        _install(Path(installed))
        path_of = os.pathsep.join((str(ROOT / "src"), installed))
        yield {**os.environ, **SETTINGS, "PYTHONPATH": path_of}


def vllm_of(python: str, model: str, options: Mapping[str, Any]) -> tuple[str, list[int], list[int], list[float]]:
    """vLLM's version, the prompt's tokens, greedy tokens and log-probabilities."""
    with environment() as variables:
        done = subprocess.run(
            [python, "-c", INSIDE, model, *map(json.dumps, (options, PROMPT, TOKENS))],
            env=variables, capture_output=True, text=True,
        )  # fmt: skip
    results = [line.removeprefix("RESULT") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not results:
        raise SystemExit(f"vLLM failed on {model}:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    version, prompt, tokens, scores = json.loads(results[-1])
    return version, prompt, tokens, scores


def served(python: str, model: Path) -> tuple[str, float]:
    """What `vllm serve MODEL` answers over HTTP under the model's own name: the text, and the first token's
    log-probability."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--dtype", "float32", "--enforce-eager",
               "--max-model-len", "128", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    asked = {"model": str(model), "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
             "logprobs": 1, "skip_special_tokens": False}  # fmt: skip
    with environment() as variables, tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:
            while server.poll() is None:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                    break
                time.sleep(1)
            if server.poll() is not None:
                log.seek(0)
                raise SystemExit(f"vllm serve ended:\n{log.read()[-5000:]}")
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode(),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            choice = json.load(urllib.request.urlopen(request))["choices"][0]
        finally:
            server.terminate()
            server.wait()
    return choice["text"], choice["logprobs"]["token_logprobs"][0]


def _install(folder: Path) -> None:
    """The entry point as an installed package has it, and the version of `vllm` from which it knows its platform and
    which its command asks for: the package vllm-cpu installs none."""
    ours = "[vllm.general_plugins]\nweighbridge = weighbridge.api.vllm:register\n"
    for name, points in (("vllm", ""), ("weighbridge", ours)):
        info = folder / f"{name}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0+cpu\n")
        (info / "entry_points.txt").write_text(points)


def runs(python: str, only: list[str], work: Path) -> Iterator[tuple[str, Run]]:
    original(model := work / "original")
    for name, form in forms().items():
        if name not in only:
            continue
        form.make(model, path := work / name)
        place = next(path.glob(form.model)) if form.model else path
        want = expected(model, place)
        beside = {"model_loader_extra_config": {"weights": str(path)}} if form.model is None else {}
        version, prompt, tokens, scores = vllm_of(
            python, str(model if beside else place), {**form.options, **beside}
        )  # fmt: skip
        distance = max(abs(a - b) for a, b in zip(want.scores, scores, strict=True))
        run = Run(form.title, tokens, (prompt, tokens) == (want.prompt, want.tokens), distance)
        print(f"{form.title}: {'equal' if run.equal else f'{tokens} instead of {want}'}, {distance:.4f}", flush=True)
        yield version, run
        if name == "q8.gguf":
            text, score = served(python, path)
            equal, distance = text.rstrip(CUT) == want.text.rstrip(CUT), abs(score - want.scores[0])
            print(f"served: {'equal' if equal else f'{text!r} instead of {want}'}, {distance:.4f}", flush=True)
            yield version, Run("the same, `vllm serve`, as text", tokens, equal, distance)


def page(version: str, found: list[Run]) -> str:
    rows = "\n".join(f"| {r.title} | {' '.join(map(str, r.tokens))} | {r.distance:.4f} |" for r in found)
    return f"""# vLLM, run by hand

<!-- written by tests/peers/run_vllm.py -->

vLLM {version} on a CPU, with a Llama of random weights and its tokenizer in each format, against transformers with the
same weights through `wb.from_pretrained`. The tokens of the prompt and all {TOKENS} greedy ones are equal. Folders that
vLLM itself could load are asked for with `load_format="weighbridge"`; the file, the GGUFs and MLX with nothing but the
path.

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
