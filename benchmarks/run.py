"""`make bench`: our times and memory beside those of the tools that people use, as ratios.

    python benchmarks/run.py [--gigabytes N] [--quantized N] [--rounds N] [--only SECTION ...] [--write]

Contenders take turns in every round, so that whatever else the machine does hits all of them alike; a ratio is the
median of the rounds' own ratios. `--write` puts the result into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
TOKENS, MERGES = 128_256, 280_147  # Llama 3's vocabulary
TEMPLATE = Path(__file__).with_name("benchmarks.md.in")
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Sample:
    """`memory`: the peak of the process, bytes; `grown`: by how much that is above the start of the task."""

    seconds: float
    memory: int
    grown: int = 0


RowRange = Callable[[], Sample]


@dataclass(frozen=True)
class Target:
    """A number to reach, in words and as a test of what was measured."""

    text: str
    reached: Callable[[Measured], bool]


@dataclass
class Section:
    """Contenders that do the same thing, ours first; what one round costs each of them. `nbytes`: of the tensors that
    each of them loads, where their memory is compared with these."""

    title: str
    what: str
    contenders: dict[str, RowRange]
    targets: Sequence[Target] = ()
    rounds: int = 5
    slow: frozenset[str] = frozenset()  # contenders that take part in the first two rounds only
    nbytes: int = 0


@dataclass
class Measured:
    """Samples by contender, round by round."""

    section: Section
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        return statistics.median(s.seconds for s in self.samples[name])

    def memory(self, name: str) -> int:
        return max(s.memory for s in self.samples[name])

    def share(self, name: str) -> float:
        """How many times the bytes of the tensors a contender took."""
        return max(s.grown for s in self.samples[name]) / self.section.nbytes

    def ratio(self, peer: str, ours: str | None = None) -> float:
        """How many times the peer's seconds are ours: the median over the rounds of each round's ratio."""
        first = self.samples[ours or next(iter(self.samples))]
        pairs = zip(self.samples[peer], first, strict=False)
        return statistics.median(theirs.seconds / mine.seconds for theirs, mine in pairs)


# --- one run ---------------------------------------------------------------------------------------------------------


def task(name: str, path: Path, warm: Path, python: str = sys.executable) -> RowRange:
    """A task of tasks.py, clocked from inside."""

    def run() -> Sample:
        command = [python, str(ROOT / "benchmarks" / "tasks.py"), name, str(path), str(warm)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        return Sample(answer["seconds"], answer["memory"], answer["grown"] or 0)

    return run


def make(name: str, path: Path, *numbers: float) -> Path:
    """An input, made by makings.py in a process of its own."""
    command = [sys.executable, ROOT / "benchmarks" / "makings.py", name, path, *numbers]
    subprocess.run([str(part) for part in command], check=True)
    return path


def process(
    command: Sequence[str | Path], *, fresh: Path | None = None, after: Callable[[], None] | None = None
) -> RowRange:
    """A whole process, clocked from outside. `fresh` is removed first, outside the clock; `after` is inside it."""
    launched = [sys.executable, "-S", str(ROOT / "benchmarks" / "launch.py"), *map(str, command)]

    def run() -> Sample:
        remove(fresh)
        done = subprocess.run(launched, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
        answer = json.loads(done.stdout)
        began = time.perf_counter()
        if after:
            after()
        return Sample(answer["seconds"] + time.perf_counter() - began, answer["memory"])

    return run


def remove(path: Path | None) -> None:
    if path is not None:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def sync(path: Path) -> Callable[[], None]:
    """Flushes a file, or all files of a folder, to the disk."""

    def run() -> None:
        for file in [path, *path.rglob("*")]:
            fd = os.open(file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    return run


def tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<100}", end="" if text else "\r", file=sys.stderr, flush=True)


def measure(section: Section, rounds: int | None) -> Measured:
    measured = Measured(section, {name: [] for name in section.contenders})
    for number in range(rounds or section.rounds):
        for name, run in section.contenders.items():
            if name not in section.slow or number < 2:
                tell(f"{section.title}: round {number + 1}, {name}")
                measured.samples[name].append(run())
    tell("")
    return measured


# --- what is measured ------------------------------------------------------------------------------------------------


def faster(peer: str, times: float) -> Target:
    return Target(f"at least {times:g} times as fast as {peer}", lambda m: m.ratio(peer) >= times)


def under_seconds(limit: float) -> Target:
    return Target(f"under {limit:g} s", lambda m: m.seconds(next(iter(m.samples))) < limit)


def under_memory(megabytes: int, ours: Sequence[str] = ()) -> Target:
    return Target(
        f"under {megabytes} MB of memory",
        lambda m: all(m.memory(name) < megabytes * 10**6 for name in ours or [next(iter(m.samples))]),
    )


def barely_more_memory(*ours: str) -> Target:
    return Target("at most 5 % more memory than the tensors", lambda m: all(m.share(name) <= 1.05 for name in ours))


def gguf_section(work: Path) -> Section:
    path = make("gguf_vocabulary", work / "vocabulary.gguf", TOKENS, MERGES)
    warm = make("gguf_vocabulary", work / "warm.gguf", 10, 10)
    return Section(
        "gguf-open",
        f"Open a GGUF with {TOKENS:,} tokens and {MERGES:,} merges, and list its keys.",
        {"weighbridge": task("wb-open", path, warm), "gguf": task("gguf-open", path, warm)},
        [faster("gguf", 500), under_memory(60)],
    )


def header_section(work: Path) -> Section:
    path, warm = make("many", work / "many.safetensors", 100_000), make("small", work / "warm.safetensors")
    return Section(
        "safetensors-header",
        "Open a Safetensors file of 100,000 tensors and list them.",
        {"weighbridge": task("wb-open", path, warm), "safetensors": task("safe-open", path, warm)},
        [faster("safetensors", 3)],
        rounds=9,
    )


def plan_section(work: Path) -> Section:
    path, warm = make("experts", work / "experts", 100, 330), make("experts", work / "experts-warm", 1, 2)
    return Section(
        "plan-experts",
        "Plan the conversion of a Mixtral of 100,000 tensors to GGUF: names mapped, experts stacked, offsets laid out.",
        {"weighbridge": task("wb-plan", path, warm)},
        [under_seconds(2), under_memory(500)],
    )


def open_section(work: Path) -> Section:
    path, warm = make("small", work / "small.safetensors"), make("small", work / "warm.safetensors")
    return Section(
        "safetensors-open",
        "Open a Safetensors file of 20 tensors and list them.",
        {
            "weighbridge": task("wb-open", path, warm),
            "weighbridge.safetensors": task("drop-in-open", path, warm),
            "safetensors": task("safe-open", path, warm),
        },
        [
            Target("at most 1.2 times the seconds of safetensors", lambda m: m.ratio("safetensors") >= 1 / 1.2),
            Target(
                "the drop-in: at most 1.2 times the seconds of safetensors",
                lambda m: m.ratio("safetensors", "weighbridge.safetensors") >= 1 / 1.2,
            ),
        ],
        rounds=15,
    )


def numpy_section(work: Path) -> Section:
    path, warm = make("large", work / "large.safetensors", 1), make("small", work / "warm.safetensors")
    return Section(
        "safetensors-numpy",
        "A Safetensors file of 1 GB as numpy arrays, every byte then read once.",
        {"weighbridge": task("wb-numpy", path, warm), "safetensors load_file": task("load-file", path, warm)},
        [faster("safetensors load_file", 3), barely_more_memory("weighbridge")],
        nbytes=path.stat().st_size,
    )


def loading_section(work: Path, gigabytes: float, cold: bool) -> Section:
    """A file as torch tensors of the CPU, by every loader that is installed."""
    path, warm = make("large", work / "large.safetensors", gigabytes), make("small", work / "warm.safetensors")
    saved, saved_warm = (
        make("torch_large", work / f"{name}.pt", size) for name, size in (("large", gigabytes), ("w", 0.1))
    )
    start = "cold:" if cold else ""
    contenders = {
        "wb.open().torch()": task(f"{start}wb-torch", path, warm),
        "weighbridge.safetensors": task(f"{start}drop-in", path, warm),
        "safetensors, mmap": task(f"{start}st-mmap", path, warm),
        "safetensors, pread": task(f"{start}st-pread", path, warm),
        "torch.load(mmap=True)": task(f"{start}torch-load-touched", saved, saved_warm),
    }
    peers = {"mlx": "mx-load", "fastsafetensors": "fastsafetensors", "runai_model_streamer": "runai"}
    contenders |= {n: task(f"{start}{t}", path, warm) for n, t in peers.items() if importlib.util.find_spec(n)}
    others = [*contenders][2:]
    ours = {"wb.provider, MLX": task(f"{start}wb-mlx", path, warm)} if "mlx" in contenders else {}
    state = "dropped from the page cache before each round (checked with mincore)" if cold else "its pages in memory"
    return Section(
        f"load-{'cold' if cold else 'warm'}",
        f"A Safetensors file of {gigabytes:g} GB as torch tensors (MLX: its arrays), every byte read once; {state}.",
        contenders | ours,
        [*(faster(name, 0.95) for name in others), barely_more_memory(*[*contenders][:2], *ours)],
        nbytes=path.stat().st_size,
    )


def gguf_torch_section(work: Path, gigabytes: float, *, first: bool) -> Section:
    """`first`: what is loaded before, for the imports, is a small file."""
    import weighbridge

    folder, path = make("llama", work / "model", gigabytes), work / "q4.gguf"
    wb = [sys.executable, "-m", "weighbridge", "-q", "quantize"]
    subprocess.run([*map(str, (*wb, folder, path, "Q4_K_M"))], check=True)
    tasks = {"weighbridge": "wb-bf16", "gguf": "gguf-bf16", "transformers": "transformers-bf16"}
    warm, time_ = path, "second"
    if first:
        warm, time_ = work / "little.gguf", "first"
        subprocess.run([*map(str, (*wb, make("llama", work / "little", 0.01), warm, "Q4_K_M"))], check=True)
    return Section(
        "gguf-torch-first" if first else "gguf-torch",
        f"A GGUF of Q4_K_M ({path.stat().st_size / 1e9:.2f} GB) as torch tensors of bf16; its pages in memory. The "
        f"{time_} time in each process: the first touches memory that it never had.",
        {name: task(name_of_task, path, warm) for name, name_of_task in tasks.items()},
        [faster("gguf", 5), faster("transformers", 5), barely_more_memory("weighbridge")],
        rounds=3,
        slow=frozenset({"gguf", "transformers"}),
        nbytes=sum(tensor.size * 2 for tensor in weighbridge.open(path, names="stored").values()),
    )  # fmt: skip


def start_section(work: Path) -> Section:
    path = make("small", work / "start.safetensors")
    wb = shutil.which("wb", path=os.path.dirname(sys.executable)) or "wb"
    first = work / "compiled"
    bare = {"python -c pass": process([sys.executable, "-c", "pass"])}
    return Section(
        "start",
        "Small files, as whole processes whose modules are compiled already, as after the first start of an "
        "installation. The last row is that first start: without compiled modules, which it writes.",
        {
            "wb inspect": process([wb, "inspect", path]),
            "wb --help": process([wb, "--help"]),
            "import weighbridge": process([sys.executable, "-c", "import weighbridge"]),
            "wb convert --dry-run": process([wb, "convert", path, work / "start.npz", "--dry-run"]),
            **bare,
            "wb inspect, the first start": process(
                ["env", f"PYTHONPYCACHEPREFIX={first}", wb, "inspect", path], fresh=first
            ),
        },
        [
            Target("`wb inspect` under 0.1 s", lambda m: m.seconds("wb inspect") < 0.1),
            Target("`wb --help` under 0.06 s", lambda m: m.seconds("wb --help") < 0.06),
            Target("a plan of a small model under 0.18 s", lambda m: m.seconds("wb convert --dry-run") < 0.18),
            Target(
                "`import weighbridge` adds less than 0.02 s to an interpreter",
                lambda m: m.seconds("import weighbridge") - m.seconds("python -c pass") < 0.02,
            ),
        ],
        rounds=15,
    )


def convert_section(work: Path, gigabytes: float) -> Section:
    from tests.oracles import tree

    folder = make("llama", work / "model", gigabytes)
    source = folder / "model.safetensors"
    ours, same, theirs, copy = (work / n for n in ("ours.gguf", "same.safetensors", "theirs.gguf", "copy"))
    wb = [sys.executable, "-m", "weighbridge", "-q", "convert"]
    contenders = {
        "wb: folder to GGUF f16": process([*wb, folder, ours, "--dtype", "f16"], fresh=ours),
        "wb: safetensors to safetensors": process([*wb, source, same], fresh=same),
        "cp + fsync": process(["cp", *_NO_REFLINK, source, copy], fresh=copy, after=sync(copy)),
    }
    if reference := tree.find():
        options = ["--outtype", "f16", "--outfile", theirs]
        script = str(reference / "convert_hf_to_gguf.py")
        command = [sys.executable, script, str(folder), *map(str, options)]
        contenders["convert_hf_to_gguf.py"] = process(command, fresh=theirs, after=sync(theirs))
    size = source.stat().st_size / 1e9
    return Section(
        "convert",
        f"A Llama of {size:.1f} GB in bf16, its pages in memory; every tool's output is flushed to the disk.",
        contenders,
        _convert_targets(bool(reference)),
        slow=frozenset({"convert_hf_to_gguf.py"}),
    )


def quantize_section(work: Path, gigabytes: float) -> Section:
    """Ours once on two cores and once on one; theirs goes by way of a file in bf16, on the same two cores."""
    folder = make("llama", work / "model", gigabytes)
    ours, alone, theirs = (work / n for n in ("ours.gguf", "alone.gguf", "theirs.gguf"))
    wb = [sys.executable, "-m", "weighbridge", "-q", "quantize", folder]
    two, one = "weighbridge, 2 threads", "weighbridge, 1 thread"
    contenders = {
        two: process([*wb, ours, _FTYPE, "-j", "2"], fresh=ours),
        one: process([*wb, alone, _FTYPE, "-j", "1"], fresh=alone),
    }
    targets = [
        Target("2 threads: at least 1.9 times as fast as one", lambda m: m.ratio(one) >= 1.9),
        under_memory(500, [two, one]),
    ]
    if script := _in_two_steps(work, folder, theirs):
        contenders[_TWO_STEPS] = process(["sh", "-c", script], fresh=theirs, after=sync(theirs))
        targets.insert(0, faster(_TWO_STEPS, 6))
    size = (folder / "model.safetensors").stat().st_size / 1e9
    return Section(
        "quantize",
        f"A Llama folder of {size / 2:.2f} billion weights in bf16 ({size:.1f} GB), its pages in memory, to a GGUF of "
        f"{_FTYPE}; every tool's output is flushed to the disk.",
        contenders,
        targets,
        slow=frozenset({_TWO_STEPS}),
    )


def vision_section(work: Path, gigabytes: float) -> Section:
    """A model that sees, to its two GGUFs, beside the text alone and a copy of what sees."""
    folder = make("idefics3", work / "model", gigabytes)
    wb = [sys.executable, "-m", "weighbridge", "-q", "convert", str(folder), "--to", "gguf", "--dtype", "bf16"]
    both, parts = work / "both", work / "parts"
    subprocess.run([*wb, f"{both}/", "--with-mmproj"], check=True)
    (written,) = both.glob("mmproj-*")
    towers = written.rename(work / "towers.gguf")
    text = shlex.join([*wb, f"{parts}/"])
    copied = shlex.join(["cp", *_NO_REFLINK, str(towers), f"{parts}/"])
    ours, beside = (
        "weighbridge, both files in one command",
        "weighbridge, the text alone, then cp + fsync of the towers",
    )
    size, seeing = (file.stat().st_size / 1e9 for file in (folder / "model.safetensors", towers))
    return Section(
        "vision",
        f"A folder of Idefics 3 in bf16 ({size:.1f} GB, {seeing:.1f} of them its towers), its pages in memory, to "
        "GGUFs of bf16; every output is flushed to the disk.",
        {
            ours: process([*wb, f"{both}/", "--with-mmproj"], fresh=both, after=sync(both)),
            beside: process(["sh", "-c", f"{text} && {copied}"], fresh=parts, after=sync(parts)),
        },
        [Target("at least 0.95 of the speed of the parts", _of_cp(ours, 0.95, beside)), under_memory(300, [ours])],
    )


def pictures_section(work: Path, gigabytes: float, sd: str | None) -> Section:
    """An image model to one K type, so that both tools apply one rule. `sd`: the python of an environment that has
    stable-diffusion-cpp-python."""
    source, ours, theirs = make("flux", work / "flux.safetensors", gigabytes), work / "ours.gguf", work / "theirs.gguf"
    wb = [sys.executable, "-m", "weighbridge", "-q", "quantize", source, ours, "Q4_K"]
    contenders = {"weighbridge": process(wb, fresh=ours)}
    if sd is not None:
        # 12: GGML_TYPE_Q4_K; names as they are
        script = (
            "import sys, stable_diffusion_cpp as sd; source, target = map(str.encode, sys.argv[1:]);"
            "sys.exit(not sd.convert(source, b'', target, 12, b'', False))"
        )
        command = [sd, "-c", script, source, theirs]
        contenders["stable-diffusion.cpp"] = process(command, fresh=theirs, after=sync(theirs))
    else:
        print("pictures: no peer. Install stable-diffusion-cpp-python in an environment of its own, and name that "
              "environment's python with --sd", file=sys.stderr)  # fmt: skip
    size = source.stat().st_size / 1e9
    return Section(
        "pictures",
        f"A single file of FLUX.1's width in bf16 ({size:.1f} GB), its pages in memory, to a GGUF of Q4_K; both on all "
        "cores, every output flushed to the disk.",
        contenders,
        [*([faster("stable-diffusion.cpp", 3)] if sd else []), under_memory(300)],
        rounds=3,
    )


#: Method -> (the parts of its recipe, the target of mergekit's seconds, the share of the copy's speed or None).
_MERGES: dict[str, tuple[dict[str, object], float, float | None]] = {
    "linear": ({"models": ["one", "two"]}, 3, 0.7),
    "slerp": ({"models": ["one", "two"], "base_model": "one", "parameters": {"t": 0.4}}, 3, None),
    "dare_ties": ({"models": ["one", "two"], "base_model": "base"}, 3, None),
}


def merge_section(work: Path, method: str, gigabytes: float, mergekit: str | None) -> Section:
    """Llamas of one size, merged in bf16. `mergekit`: its command in an environment of its own."""
    recipe, times, share = _MERGES[method]
    make("llama", work / "base", gigabytes)
    for number, name in enumerate(("one", "two")):
        make("tuned", work / name, number)
    used = [*recipe["models"], *([recipe["base_model"]] if "base_model" in recipe else [])]  # type: ignore[misc]
    weighted = {"parameters": {"weight": 0.5, "density": 0.5} if "dare" in method else {"weight": 0.5}}
    models = [{"model": str(work / name)} | ({} if method == "slerp" else weighted) for name in ("one", "two")]
    parts = {key: str(work / str(value)) if key == "base_model" else value for key, value in recipe.items()}
    path = work / "recipe.yaml"
    path.write_text(json.dumps({"merge_method": method, "dtype": "bfloat16", **parts, "models": models}))
    ours, theirs, copy = work / "ours", work / "theirs", work / "copy"
    source = work / "one" / "model.safetensors"
    contenders = {
        f"wb merge, {method}": process([sys.executable, "-m", "weighbridge", "-q", "merge", path, ours], fresh=ours),
        "cp + fsync of one model": process(["cp", *_NO_REFLINK, source, copy], fresh=copy, after=sync(copy)),
    }
    targets = [under_memory(300)]
    if mergekit is not None:
        command = [mergekit, path, theirs, "--lazy-unpickle"]
        contenders["mergekit-yaml"] = process(command, fresh=theirs, after=lambda: os.sync())
        targets.insert(0, faster("mergekit-yaml", times))
    if share is not None:
        name = "cp + fsync of one model"
        # Two models are read and one is written: three bytes for two of the copy.
        targets.append(
            Target(
                f"{share:.0%} of the bytes a second that cp + fsync reads and writes",
                _of_cp(f"wb merge, {method}", share * 2 / 3, name),
            )
        )
    size = source.stat().st_size / 1e9
    return Section(
        f"merge-{method.replace('_', '-')}",
        f"{len(set(used))} Llamas of {size:.1f} GB in bf16 merged by {method}, their pages in memory; outputs flushed.",
        contenders,
        targets,
        rounds=3,
        slow=frozenset({"mergekit-yaml"}),
    )


_FTYPE, _TWO_STEPS = "Q4_K_M", "convert_hf_to_gguf.py + llama-quantize"


def _in_two_steps(work: Path, folder: Path, target: Path) -> str | None:
    """The peers' commands, as a shell takes them; None without Linux and a C++ compiler."""
    from tests.oracles import llama_quantize, tree

    reference = tree.find()
    if reference is None or sys.platform != "linux" or not (shutil.which("g++") or shutil.which("c++")):
        print("quantize: no peer", file=sys.stderr)
        return None
    between, jobs = work / "between.gguf", work / "jobs.json"
    jobs.write_text(json.dumps([[str(between), str(target), _FTYPE, "2"]]))
    converter = reference / "convert_hf_to_gguf.py"
    convert = [sys.executable, converter, folder, "--outtype", "bf16", "--outfile", between]
    steps = (shlex.join(map(str, command)) for command in (convert, llama_quantize.process()))
    return " && ".join(steps) + f" < {shlex.quote(str(jobs))}"


def moves_section(work: Path, gigabytes: float) -> Section:
    """MLX's parts to ggml's blocks and back, GPTQ's and AWQ's words to MLX's; each beside a copy of what it writes."""
    folder = make("llama", work / "model", gigabytes)
    mlx, file, k, of_k = (work / name for name in ("mlx", "blocks.gguf", "k.gguf", "of-k"))
    wb = [sys.executable, "-m", "weighbridge", "-q"]
    process([*wb, "convert", folder, mlx, "--to", "mlx", "--q-bits", "4", "--dtype", "f16"])()
    process([*wb, "quantize", folder, k, "Q4_K", "--pure"])()
    for scheme in ("gptq", "awq"):
        process([*wb, "convert", folder, work / scheme, "--to", "hf", "--scheme", scheme])()
        process([*wb, "convert", work / scheme, work / f"of-{scheme}", "--to", "mlx"])()
    process([*wb, "convert", mlx, file])()
    process([*wb, "convert", k, of_k, "--to", "mlx"])()
    remove(folder)
    moves = {
        "MLX to GGUF, 4 bits to Q4_1": (mlx, work / "ours.gguf", file),
        "GGUF to MLX, Q4_1 to 4 bits": (file, work / "back", file),
        "GGUF to MLX, Q4_K to 4 bits": (k, work / "of-k-again", of_k),
        "GPTQ to MLX": (work / "gptq", work / "of-gptq-again", work / "of-gptq"),
        "AWQ to MLX": (work / "awq", work / "of-awq-again", work / "of-awq"),
    }
    contenders, targets = {}, []
    for name, (source, target, written) in moves.items():
        to = ["--to", "mlx"] if "." not in target.name else []
        contenders[f"wb: {name}"] = process([*wb, "convert", source, target, *to], fresh=target)
        copied = written if written.is_file() else written / "model.safetensors"
        copy, cp = work / f"copy-{written.name}", f"cp + fsync of {written.name}"
        contenders[cp] = process(["cp", *_NO_REFLINK, copied, copy], fresh=copy, after=sync(copy))
        targets.append(Target(f"{name}: at least 80 % of {cp}", _of_cp(f"wb: {name}", 0.8, cp)))
    sizes = (f"{path.stat().st_size / 1e9:.1f} GB" for path in (file, of_k / "model.safetensors"))
    return Section(
        "moves",
        "Quantized weights from MLX to GGUF and back, from GPTQ and AWQ to MLX, their values unchanged: {} of Q4_1, "
        "{} of what Q4_K becomes; pages in memory, outputs flushed.".format(*sizes),
        contenders,
        [*targets, under_memory(300, [name for name in contenders if name.startswith("wb")])],
    )


def mlx_section(work: Path, gigabytes: float) -> Section:
    folder = make("llama", work / "model", gigabytes)
    ours, theirs = work / "ours", work / "theirs"
    script = "import sys, mlx_lm; mlx_lm.convert(sys.argv[1], sys.argv[2], quantize=True, q_bits=4)"
    wb = [sys.executable, "-m", "weighbridge", "-q", "convert", folder, ours, "--to", "mlx", "--q-bits", "4"]
    size = (folder / "model.safetensors").stat().st_size / 1e9
    return Section(
        "mlx",
        f"A Llama folder of {size:.1f} GB in bf16 to MLX of 4 bits in groups of 64, the same tensors by both; its "
        "pages in memory, every output flushed to the disk.",
        {
            "weighbridge": process(wb, fresh=ours),
            "mlx_lm.convert": process(
                [sys.executable, "-c", script, folder, theirs],
                fresh=theirs,
                after=lambda: sync(theirs / "model.safetensors")(),
            ),
        },
        [faster("mlx_lm.convert", 3), under_memory(300)],
    )


def torch_section(work: Path, gigabytes: float) -> Section:
    source = make("torch_large", work / "model.pt", gigabytes)
    plain = make("large", work / "model.safetensors", gigabytes)
    ours, back, copy = (work / n for n in ("ours.safetensors", "back.pt", "copy"))
    wb = [sys.executable, "-m", "weighbridge", "-q", "convert"]
    names = "wb: torch to safetensors", "wb: safetensors to torch"
    return Section(
        "torch",
        f"A checkpoint of torch's of {source.stat().st_size / 1e9:.1f} GB in f32 to Safetensors, and as much back; its "
        "pages in memory, every output flushed to the disk.",
        {
            names[0]: process([*wb, source, ours], fresh=ours),
            names[1]: process([*wb, plain, back], fresh=back),
            "cp + fsync": process(["cp", *_NO_REFLINK, source, copy], fresh=copy, after=sync(copy)),
        },
        [
            Target("torch to safetensors: at least 70 % of cp + fsync", _of_cp(names[0])),
            under_memory(300, names),
        ],
    )


def training_section(work: Path, kind: str, gigabytes: float, deepspeed: str | None) -> Section:
    """`kind`: a maker of makings.py. `deepspeed`: the python of an environment that has it."""
    folder = make(kind, work / "step", gigabytes)
    ours, theirs, copy = work / "ours.safetensors", work / "theirs.pt", work / "copy"
    name, wb = "wb: to safetensors", [sys.executable, "-m", "weighbridge", "-q", "convert"]
    contenders = {
        name: process([*wb, folder, ours], fresh=ours),
        "cp + fsync": process(["cp", "-r", *_NO_REFLINK, folder, copy], fresh=copy, after=sync(copy)),
    }
    if kind == "dcp":
        script = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
        contenders["torch's dcp_to_torch"] = process([*script, folder, theirs], fresh=theirs, after=sync(theirs))
    elif kind.startswith("zero") and deepspeed is not None:
        whole = work / "whole"
        command = [
            deepspeed,
            "-m",
            "deepspeed.utils.zero_to_fp32",
            work,
            whole,
            "--safe_serialization",
            "-t",
            folder.name,
        ]
        contenders["DeepSpeed's zero_to_fp32.py"] = process(command, fresh=whole, after=sync(whole))
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e9
    return Section(
        f"training-{kind}",
        f"{_TRAINING[kind]}, {size:.1f} GB in f32, to one Safetensors file; its pages in memory, every output flushed "
        "to the disk.",
        contenders,
        [Target("at least 70 % of cp + fsync", _of_cp(name)), under_memory(300)],
    )


def torch_open_section(work: Path) -> Section:
    path, warm = make("torch_many", work / "many.pt", 100_000), make("torch_many", work / "warm.pt", 20)
    return Section(
        "torch-open",
        "Open a checkpoint of torch's with 100,000 tensors and list them; torch maps it and makes its tensors.",
        {"weighbridge": task("wb-open", path, warm), "torch.load": task("torch-load", path, warm)},
        [faster("torch.load", 1), under_memory(500)],
    )


def scan_section(work: Path, kind: str, picklescan: str | None) -> Section:
    path, warm = make(kind, work / kind, 1000), make(kind, work / "warm", 1)
    contenders = {"weighbridge": task("wb-scan", path, warm)}
    if picklescan:
        contenders["picklescan"] = task("picklescan", path, warm, picklescan)
    else:
        print(f"scan-{kind}: no peer. Install picklescan in an environment of its own, and name that environment's "
              "python with --picklescan", file=sys.stderr)  # fmt: skip
    return Section(
        f"scan-{kind}",
        f"Scan a folder of 1,000 small {kind}, all in one process.",
        contenders,
        [faster("picklescan", 5 if kind == "pickles" else 1)] if picklescan else [],
    )


def scan_large_section(work: Path, picklescan: str | None) -> Section:
    path, warm = make("hollow", work / "hollow.pt", 5), make("hollow", work / "warm.pt", 0.02)
    contenders = {"weighbridge": task("wb-scan", path, warm)}
    if picklescan:
        contenders["picklescan"] = task("picklescan", path, warm, picklescan)
    return Section(
        "scan-large",
        "Scan a checkpoint of 5 GB (a sparse file: whoever reads the tensors reads zeros).",
        contenders,
        [Target("under 50 ms", lambda m: m.seconds("weighbridge") < 0.05), under_memory(200)],
        slow=frozenset({"picklescan"}),
    )


def fit_section(work: Path) -> Section:
    from benchmarks import giants

    folder = giants.make(work / "deepseek-v3", giants.GIANTS["deepseek-v3"])
    return Section(
        "fit",
        "Judge a folder of 671 billion weights, DeepSeek V3 with its 91,991 tensors, in every quantization type: "
        "`wb fit` as a whole process.",
        {"weighbridge": process([sys.executable, "-m", "weighbridge", "fit", folder, "--device", "4000GB"])},
        [under_seconds(1), under_memory(200)],
    )


def prove_section(work: Path) -> Section:
    from tests.oracles import minilm, models

    folders = {"a Llama of two layers": models.build(models.CASES["llama3"], work / "llama")}
    if found := minilm.folder():
        folders = {"MiniLM": found, **folders}
    wb, contenders = [sys.executable, "-m", "weighbridge"], {}
    for number, (name, folder) in enumerate(folders.items()):
        pre = ["--pre", models.CASES["llama3"].pre] if name != "MiniLM" else []
        target = work / f"{number}.gguf"
        process([*wb, "-q", "convert", folder, target, "--dtype", "f16", *filter(None, pre)])()
        contenders[name] = process([*wb, "prove", folder, target])
    return Section(
        "prove",
        "Prove that a GGUF of F16 is the folder that it was made of: settings, tokenizer, tensors, and what "
        "transformers and llama.cpp compute of each; `wb prove` as a whole process, with the start of both.",
        contenders,
        [Target("each under a minute", lambda m: all(m.seconds(name) < 60 for name in m.samples))],
        rounds=2,
    )


_NO_REFLINK = ["--reflink=never"] if sys.platform == "linux" else []


def _convert_targets(reference: bool) -> list[Target]:
    names = "wb: folder to GGUF f16", "wb: safetensors to safetensors"
    out = [Target(f"{name.removeprefix('wb: ')}: at least 70 % of cp + fsync", _of_cp(name)) for name in names]
    if reference:
        out.append(faster("convert_hf_to_gguf.py", 3))
    return [*out, under_memory(300, names)]


#: Maker of a training checkpoint -> what it is.
_TRAINING = {
    "dcp": "A checkpoint that torch.distributed.checkpoint saved in two processes, sharded by rows",
    "zero2": "A step of DeepSpeed's ZeRO 2 of four processes, without the optimizer's moments",
    "zero3": "A step of DeepSpeed's ZeRO 3 of four processes, without the optimizer's moments",
    "megatron": "A step of Megatron-LM of two tensor-parallel ranks, without an optimizer",
}


def _of_cp(name: str, part: float = 0.7, cp: str = "cp + fsync") -> Callable[[Measured], bool]:
    return lambda m: m.ratio(cp, name) >= part


# --- the report ------------------------------------------------------------------------------------------------------


def report(measured: Measured) -> str:
    """One section as Markdown: a table of contenders, then the targets."""
    ours = next(iter(measured.samples))
    lines = [f"## {measured.section.title}", "", measured.section.what, ""]
    columns = ["", "median", "spread", "seconds against ours", "peak memory", "rounds"]
    if measured.section.nbytes:
        columns.append("growth, times the tensors")
    lines += [f"| {' | '.join(columns)} |".replace("|  |", "| |"), f"|---|{'--:|' * (len(columns) - 1)}"]
    for name, samples in measured.samples.items():
        times = [s.seconds for s in samples]
        spread = f"{duration(min(times))} to {duration(max(times))}"
        ratio = "" if name == ours else f"{measured.ratio(name):.3g}"
        row = [name, duration(measured.seconds(name)), spread, ratio, f"{measured.memory(name) / 1e6:.0f} MB"]
        row.append(str(len(samples)))
        if measured.section.nbytes:
            row.append(f"{measured.share(name):.3f}")
        lines.append(f"| {' | '.join(row)} |")
    lines.append("")
    lines += [f"- {'reached' if t.reached(measured) else '**missed**'}: {t.text}" for t in measured.section.targets]
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def machine() -> str:
    """The machine in words, without its name."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    python = f"Python {platform.python_version()}"
    return f"{os.cpu_count()} cores of {processor}, {memory:.0f} GiB of memory, {system}, {python}"


def versions() -> str:
    def of(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"{name} absent"

    peers = ("weighbridge", "safetensors", "gguf", "numpy", "torch", "transformers", "mlx", "mlx-lm",
             "compressed-tensors", "bitsandbytes", "hqq")  # fmt: skip
    return ", ".join(map(of, peers)) + "; convert_hf_to_gguf.py of llama.cpp b11549"


def table_report(script: str, rounds: int | None) -> str:
    """A section of its own form: a table of types (processes.py, kernels.py, counting.py), of schemes (unpacking.py),
    of coders (packing.py), or of what a page takes (page.py)."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), str(rounds or 5)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


SECTIONS: dict[str, Callable[[Path, argparse.Namespace], Section]] = {
    "gguf-open": lambda work, args: gguf_section(work),
    "safetensors-open": lambda work, args: open_section(work),
    "safetensors-header": lambda work, args: header_section(work),
    "plan-experts": lambda work, args: plan_section(work),
    "safetensors-numpy": lambda work, args: numpy_section(work),
    "load-warm": lambda work, args: loading_section(work, 1, cold=False),
    "load-cold": lambda work, args: loading_section(work, 1, cold=True),
    "gguf-torch-first": lambda work, args: gguf_torch_section(work, 0.5, first=True),
    "gguf-torch": lambda work, args: gguf_torch_section(work, 0.5, first=False),
    "start": lambda work, args: start_section(work),
    "convert": lambda work, args: convert_section(work, args.gigabytes),
    "quantize": lambda work, args: quantize_section(work, args.quantized),
    "vision": lambda work, args: vision_section(work, args.gigabytes),
    "pictures": lambda work, args: pictures_section(work, args.gigabytes, args.sd),
    **{
        f"merge-{name.replace('_', '-')}": lambda work, args, name=name: merge_section(
            work, name, args.gigabytes, args.mergekit
        )
        for name in _MERGES
    },
    "moves": lambda work, args: moves_section(work, args.gigabytes * 2),
    "mlx": lambda work, args: mlx_section(work, args.gigabytes),
    "torch": lambda work, args: torch_section(work, args.gigabytes),
    "torch-open": lambda work, args: torch_open_section(work),
    **{
        f"training-{kind}": lambda work, args, kind=kind: training_section(work, kind, args.gigabytes, args.deepspeed)
        for kind in _TRAINING
    },
    "fit": lambda work, args: fit_section(work),
    "prove": lambda work, args: prove_section(work),
    "scan-pickles": lambda work, args: scan_section(work, "pickles", args.picklescan),
    "scan-checkpoints": lambda work, args: scan_section(work, "checkpoints", args.picklescan),
    "scan-large": lambda work, args: scan_large_section(work, args.picklescan),
}
REPORTS: dict[str, Callable[[argparse.Namespace], str]] = {
    **{name: lambda args, name=name: section_report(name, args) for name in SECTIONS},
    "quantize-processes": lambda args: table_report("processes.py", args.rounds),
    "kernels": lambda args: table_report("kernels.py", args.rounds),
    "unpack": lambda args: table_report("unpacking.py", args.rounds),
    "pack": lambda args: table_report("packing.py", args.rounds),
    "counting": lambda args: table_report("counting.py", args.rounds),
    "view": lambda args: table_report("page.py", args.rounds),
}


def section_report(name: str, args: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="wb-bench-", dir=args.folder) as work:
        return report(measure(SECTIONS[name](Path(work), args), args.rounds))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.5, help="size of the model that is converted")
    parser.add_argument("--quantized", type=float, default=0.8, help="gigabytes of the model that is quantized")
    parser.add_argument("--rounds", type=int, help="rounds of every section")
    parser.add_argument("--only", nargs="+", choices=REPORTS, default=list(REPORTS), help="these sections alone")
    parser.add_argument("--folder", type=Path, help="where to put inputs and outputs (on the disk to be measured)")
    parser.add_argument("--picklescan", metavar="PYTHON", help="the python of an environment that has picklescan")
    parser.add_argument("--sd", metavar="PYTHON", help="the python of an environment with stable-diffusion-cpp-python")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="the python of an environment that has deepspeed")
    parser.add_argument("--mergekit", metavar="COMMAND", help="mergekit-yaml of an environment that has it")
    parser.add_argument("--write", action="store_true", help="put the result into docs/benchmarks.md")
    args = parser.parse_args()
    if args.write and {*args.only} != {*REPORTS}:
        parser.error("--write replaces the whole page: leave --only out")
    return args


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules; each start would compile all
    args = arguments()
    reports = []
    for name in args.only:
        text = REPORTS[name](args)
        print(text, flush=True)
        reports.append(text)
    print(f"{machine()}\n{versions()}")
    if args.write:
        page = TEMPLATE.read_text(encoding="utf-8")
        values = {"date": date.today().isoformat(), "machine": machine(), "versions": versions()}
        PAGE.write_text(page.format(results="\n".join(reports), **values), encoding="utf-8")
    return 1 if any("**missed**" in text for text in reports) else 0


if __name__ == "__main__":
    raise SystemExit(main())
