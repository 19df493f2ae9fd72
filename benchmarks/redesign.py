"""Shows that a redesign changes nothing: compares this tree with another commit, output by output.

    python benchmarks/redesign.py COMMIT [--native FILE] [--keep FOLDER]

Runs some 200 conversions of the tests' toy models in both trees, and compares the SHA-256 of every file that they
write (or the exit code of a refusal), the verdicts of identify, verify and scan on every input, every output and a few
damaged copies, and the times of inspect, plan and quantize, measured alternately. Prints each difference; the exit code
is 1 if there is one. `--native`: the compiled extension for the other tree, whose sources may differ; default: that of
this tree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("llama3", "qwen3moe", "gemma3", "deepseek-v2-lite", "bert", "t5", "phi-mini", "mixtral-fused", "granite-moe")
ROUNDS = 5

#: Suffix of the target -> options of wb.convert.
CONVERSIONS: dict[str, dict[str, Any]] = {
    **{f"{dtype}.gguf": {"dtype": dtype} for dtype in ("f32", "f16", "bf16", "q8_0", "auto")},
    "plain.gguf": {"tokenizer": False},
    "shards-gguf": {"to": "gguf", "max_shard_tensors": 8},
    "generic.gguf": {"generic": "toy"},
    "kept.safetensors": {},
    "f16.safetensors": {"dtype": "f16"},
    "kept.bin": {},
    "bf16.npz": {"dtype": "f16"},
    "hf-f16": {"to": "hf", "dtype": "f16"},
    "hf-torch": {"to": "hf-torch"},
    "mlx": {"to": "mlx"},
    "mlx-4": {"to": "mlx", "q_bits": 4, "q_group_size": 32},
    "mlx-mxfp4": {"to": "mlx", "q_mode": "mxfp4"},
    "gptq": {"to": "hf", "scheme": "gptq", "q_group_size": 32},
    "awq": {"to": "hf", "scheme": "awq", "q_group_size": 32},
    "w8a8": {"to": "hf", "scheme": "w8a8"},
    "nvfp4": {"to": "hf", "scheme": "nvfp4a16"},
}
#: The same for the Q8_0 GGUF and for the MLX and GPTQ folders made by these.
BACK: dict[str, dict[str, dict[str, Any]]] = {
    "q8_0.gguf": {"hf": {"to": "hf"}, "mlx": {"to": "mlx"}, "f16.gguf": {"dtype": "f16"}, "safetensors": {}},
    "mlx-4": {"gguf": {}, "hf": {"to": "hf", "dtype": "f16"}},
    "gptq": {"gguf": {}, "hf": {"to": "hf", "dtype": "bf16"}},
}
FTYPES = ("Q4_K_M", "Q5_0", "Q2_K", "IQ4_XS", "Q6_K")


# ------------------------------------------------------------------------------------------------ in each tree


def outcome(call: Callable[[], Any], path: Path) -> dict[str, str]:
    """The digest of each file written to `path`, or the kind of error; both trees may word errors differently."""
    try:
        call()
    except Exception as error:  # every kind of failure is an outcome to compare
        return {"error": type(error).__name__}
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def conversions(inputs: Path, outputs: Path) -> Iterator[tuple[str, dict[str, str]]]:
    import weighbridge as wb

    def convert(source: Path, name: str, suffix: str, options: dict[str, Any]) -> tuple[str, dict[str, str]]:
        target = outputs / (f"{name}.{suffix}" if suffix in ("gguf", "safetensors") else f"{name}-{suffix}")
        return target.name, outcome(lambda: wb.convert(source, target, **options), target)

    for model in sorted(p for p in inputs.iterdir() if p.is_dir()):
        for suffix, options in CONVERSIONS.items():
            yield convert(model, model.name, suffix, options)
        for made, targets in BACK.items():
            source = outputs / f"{model.name}-{made}"
            for suffix, options in targets.items() if source.exists() else ():
                yield convert(source, f"{source.name}-back", suffix, options)
        for ftype in FTYPES:
            target = outputs / f"{model.name}-{ftype}.gguf"
            yield target.name, outcome(partial(wb.quantize, model, target, ftype), target)


def verdicts(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    """Rules and severities of findings, not their texts."""
    import weighbridge as wb

    for path in paths:
        row: dict[str, Any] = {}
        for name, call in (("identify", wb.identify), ("verify", wb.verify), ("scan", wb.scan)):
            try:
                report = call(path)
            except Exception as error:  # an outcome to compare
                row[name] = type(error).__name__
                continue
            rules = sorted((f.rule, str(f.severity)) for f in getattr(report, "findings", ()))
            row[name] = [str(getattr(report, "verdict", "")), str(getattr(report, "format", "")), *rules]
        yield str(path), row


def times(large: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """Seconds of one call each."""
    import weighbridge as wb

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        calls: dict[str, Callable[[], Any]] = {
            "inspect": lambda: wb.inspect(large),
            "plan": lambda: wb.plan_convert(large, Path(scratch) / "p.gguf", dtype="q8_0", tokenizer=False).close(),
            "quantize": lambda: wb.quantize(large, Path(scratch) / "q.gguf", "Q4_K_M", tokenizer=False, overwrite=True),
        }
        for name, call in calls.items():
            call()  # imports and caches
            start = time.perf_counter()
            call()
            yield name, time.perf_counter() - start


def work(kind: str, arguments: list[str]) -> dict[str, Any]:
    import weighbridge

    paths = [Path(argument) for argument in arguments]
    tasks: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
        "convert": lambda: conversions(*paths),
        "verdicts": lambda: verdicts([Path(p) for p in json.loads(paths[0].read_text())]),
        "times": lambda: times(*paths),
    }
    return {"package": str(Path(weighbridge.__file__).parent), "rows": dict(tasks[kind]())}


def run_in(tree: Path, kind: str, *arguments: Path) -> dict[str, Any]:
    """Runs this script as a worker on the package of `tree`."""
    command = [sys.executable, __file__, "--work", kind, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if not Path(answer["package"]).samefile(tree / "src" / "weighbridge"):
        raise SystemExit(f"the worker imported {answer['package']}, not the package of {tree}")
    return dict(answer["rows"])


# ------------------------------------------------------------------------------------------------ inputs


def make_inputs(folder: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.oracles import models

    for name in MODELS:
        models.build(models.CASES[name], folder / name)


def make_large(folder: Path) -> Path:
    """A Llama of 24 layers with 60 million parameters."""
    import numpy as np
    from safetensors.numpy import save_file

    layers, width, inner, vocabulary = 24, 512, 1024, 4096
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "rope_theta": 1e4,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }  # fmt: skip
    for i in range(layers):
        front = f"model.layers.{i}"
        shapes |= {f"{front}.self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        shapes |= {f"{front}.mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{front}.mlp.down_proj.weight": (width, inner)}
        shapes |= {f"{front}.{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
    random = np.random.default_rng(0)
    folder.mkdir()
    save_file({n: random.standard_normal(s, np.float32) for n, s in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def damaged(outputs: Path, folder: Path) -> Iterator[Path]:
    """Outputs cut short, with a byte changed in the header, and with bytes appended."""
    folder.mkdir()
    for path in sorted(p for p in outputs.glob(f"{MODELS[0]}-*") if p.is_file()):
        data = path.read_bytes()
        changed = bytearray(data)
        changed[min(40, len(data) - 1)] ^= 0x55
        for kind, content in (("cut", data[:-100]), ("changed", bytes(changed)), ("longer", data + b"rubbish!")):
            copy = folder / f"{kind}-{path.name}"
            copy.write_bytes(content)
            yield copy


# ------------------------------------------------------------------------------------------------ comparison


def compare(title: str, old: dict[str, Any], new: dict[str, Any]) -> int:
    """Prints the rows that differ, and returns their number."""
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    print(f"{title}: {len(new)} compared, {len(differing)} differ")
    for name in differing:
        print(f"  {name}\n    was {old.get(name)}\n    is  {new.get(name)}")
    return len(differing)


def checkout(commit: str, folder: Path, native: Path) -> Path:
    tree = folder / "tree"
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], cwd=ROOT, check=True)
    shutil.copy(native, tree / "src" / "weighbridge")
    return tree


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        print("\n" + json.dumps(work(sys.argv[2], sys.argv[3:])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--native", type=Path, help="compiled extension for the other tree")
    parser.add_argument("--keep", type=Path, help="folder for inputs and outputs, kept afterwards")
    arguments = parser.parse_args()
    native = arguments.native or next((ROOT / "src" / "weighbridge").glob("_native*.so"))
    folder = Path(arguments.keep or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    tree = checkout(arguments.commit, folder, native)
    try:
        return compare_trees(tree, folder)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
        if not arguments.keep:
            shutil.rmtree(folder)


def compare_trees(tree: Path, folder: Path) -> int:
    inputs = folder / "inputs"
    inputs.mkdir()
    make_inputs(inputs)
    outputs = {}
    for name, where in (("old", tree), ("new", ROOT)):
        (folder / name).mkdir()
        outputs[name] = run_in(where, "convert", inputs, folder / name)
    refused = sum("error" in row for row in outputs["new"].values())
    differing = compare(f"conversions ({refused} of them refused)", outputs["old"], outputs["new"])
    listing = folder / "paths.json"
    files = [*sorted(inputs.iterdir()), *sorted((folder / "old").iterdir()), *damaged(folder / "old", folder / "bad")]
    listing.write_text(json.dumps([str(path) for path in files]))
    differing += compare("verdicts", *(run_in(where, "verdicts", listing) for where in (tree, ROOT)))
    large = make_large(folder / "large")
    seconds: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for _ in range(ROUNDS):
        for name, where in (("old", tree), ("new", ROOT)):
            seconds[name].append(run_in(where, "times", large, folder))
    for call in seconds["new"][0]:
        old, new = (min(row[call] for row in seconds[name]) for name in ("old", "new"))
        print(f"{call:10}{old * 1000:9.1f} ms -> {new * 1000:9.1f} ms, {new / old - 1:+.0%}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
