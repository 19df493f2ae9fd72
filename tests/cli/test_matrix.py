"""Every option of every command, in each way that the command is used: it changes the answer, or it is a usage error.

The options come from the click commands, so a new one fails here until it has a value, and a reason where it can't be
seen in an answer. `wb convert` is also held target by target, in test_options.py.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest
from tests.cli.test_options import sources  # noqa: F401  # the models
from tests.llama import llama_tensors, make_folder
from tests.remote.servers import FileServer
from tests.reports.makers import imatrix_dat
from tests.signature.keys import make_key

from weighbridge.cli.main import COMMANDS, common_options, load, main

# Command -> the ways it is used. Words: FOLDER, GGUF, ST, PT, MLX (models), SUMS, TWINS (two files of the same bytes),
# PACKED (a packed model), URL (a file elsewhere), OUT (a new path), COPY.gguf (one that may be changed).
USES: Mapping[str, Sequence[str]] = {
    "identify": ["FOLDER", "GGUF"],
    "inspect": ["FOLDER", "GGUF", "ST", "ST::a", "GGUF --tensors", "GGUF --tree", "GGUF --metadata", "IMATRIX"],
    "anatomy": ["ST", "GGUF --map", "ST::a", "ST --at 10", "GGUF --end 64", "ST::a --block 0"],
    "explain": ["PT", "PT --calls", "PT --all"],
    "get": ["ST::a", "ST::a -o OUT.npy", "ST::a -o OUT.pt", "ST::a --raw -o OUT.bin", "GGUF::output.weight -o -"],
    "stats": ["FOLDER", "GGUF::output.weight", "ST::a"],
    "verify": ["FOLDER", "GGUF", "GGUF --signature SIG --key PUB"],
    "sign": ["COPY.gguf --key KEY"],
    "sbom": ["FOLDER", "GGUF", "FOLDER --format spdx"],
    "diff": ["FOLDER GGUF", "FOLDER ST", "FOLDER ST --html OUT.html"],
    "lineage": ["FOLDER GGUF", "FOLDER GGUF MLX --svg OUT.svg"],
    "scan": ["PT", "PT --sarif OUT.sarif"],
    "hash": ["FOLDER", "ST --tensors", "GGUF --gguf-hash", "--check SUMS", "ST --manifest OUT.json"],
    "convert": ["FOLDER OUT.gguf", "FOLDER OUT --to hf", "FOLDER OUT --to mlx", "GGUF OUT --to hf", "ST OUT.npz",
                "FOLDER OUT.gguf --dtype q4_0", "PT OUT.safetensors"],
    "quantize": ["FOLDER OUT.gguf Q4_0", "GGUF OUT.gguf Q4_0", "FOLDER OUT.gguf --target-bpw 6",
                 "FOLDER OUT.gguf --recipe RECIPE",
                 "FOLDER OUT.gguf --target-bpw 6 --imatrix auto --text TEXT --context 16 --chunks 3"],
    "imatrix": ["FOLDER OUT.gguf --text TEXT --context 16 --chunks 3"],
    "plan": ["ST OUT.npz"],
    "split": ["FOLDER OUT --max-shard-tensors 5", "GGUF OUT --max-shard-tensors 1", "FOLDER OUT --tp 2"],
    "merge": ["FOLDER OUT.safetensors", "GGUF OUT.gguf", "FOLDER GGUF OUT --method slerp --t 0.5",
              "FOLDER GGUF OUT --method dare_ties --merge-base MLX --density 0.4"],
    "extract-lora": ["FOLDER OTHER OUT", "FOLDER OTHER OUT.gguf"],
    "strip": ["PT OUT.safetensors", "PT OUT.pt"],
    "rename": ["ST", "ST OUT.safetensors --add-prefix x.", "GGUF OUT.safetensors --to-names canonical"],
    "slice": ["FOLDER OUT --layers 1", "GGUF OUT.gguf --keep *"],
    "edit": ["COPY.gguf", "COPY.gguf --get general.name", "COPY.gguf --set a=b", "ST --set a=b -o OUT.safetensors"],
    "fit": ["FOLDER --device rtx4090", "GGUF --device rtx4090", "FOLDER --device rtx4090 --runtime mlx"],
    "ls": ["MODELS", "MODELS --lineage"],
    "du": ["MODELS"],
    "prove": ["FOLDER GGUF --no-run"],
    "quality": ["FOLDER --text TEXT --context 16 --chunks 3", "FOLDER GGUF --text TEXT --context 16 --chunks 3"],
    "fleet scan": ["ST -o OUT", "ST -o OUT --dry-run"],
    "choose": ["FOLDER --device rtx4090 --trusted", "--device rtx4090 --trusted"],
    "completion": ["bash"],
    "dedupe": ["TWINS --dry-run"],
    "pack": ["FOLDER OUT", "ST OUT.safetensors", "ST OUT.safetensors --dry-run"],
    "unpack": ["PACKED OUT"],
    "fetch": ["URL OUT", "URL OUT --dry-run"],
    "mount": ["FOLDER POINT"],
    "serve": ["FOLDER"],
    "ship": ["llama-server GGUF --device rtx4090 --dry-run",
             "vllm FOLDER --dry-run", "mlx MLX --dry-run", "ollama GGUF one --store OUT.s",
             "ollama GGUF one --modelfile OUT.m", "lmstudio GGUF me/one --store OUT.s", "hub GGUF me/one --dry-run",
             "hub GGUF me/one -o OUT.md"],
    "view": ["ST", "ST GGUF", "ST -o OUT.html", "FOLDER -o OUT.html"],
    "arch list": [""],
    "arch show": ["llama"],
    "arch check": ["FOLDER", "GGUF"],
}  # fmt: skip
# Option -> a value that makes a difference wherever it applies; flags need none.
VALUES: Mapping[str, str] = {
    "--filter": "rank=1", "--include": "*a*|no", "--exclude": "*a*|x*", "--sort": "name:desc", "--limit": "0",
    "--model": "FOLDER", "--at": "20", "--start": "20", "--end": "9", "--kind": "tensor", "--head": "3",
    "--member": "nothing",
    "--output": "OUT.x", "--slice": "[0:1]", "--dtype": "bf16|f32|f16", "--fail-on": "info", "--names": "stored",
    "--tolerance": "9", "--html": "OUT2.html", "--svg": "OUT2.svg",
    "--sarif": "OUT2.sarif", "--algo": "md5", "--manifest": "OUT2.json",
    "--endian": "big", "--arch": "mine",
    "--arch-file": "TABLE", "--config": "TABLE", "--jobs": "1", "--max-memory": "999MB", "--to": "torch|npz",
    "--max-shard-size": "1",
    "--max-shard-tensors": "2", "--inexact": "refuse", "--lora": "ADAPTER",
    "--projector": "GGUF", "--graph": "GGUF",
    "--rank": "2", "--energy": "0.5", "--modules-to-save": "norm",
    "--method": "linear", "--merge-base": "MLX", "--t": "0.3", "--weight": "0.3", "--density": "0.3", "--seed": "3",
    "--parameter": "gamma=0.8",
    "--tokenizer-source": "base",
    "--field": "text", "--chunks": "1", "--chunk": "1", "--in-file": "IMATRIX", "--save": "OUT2.kld",
    "--search": "best", "--save-recipe": "OUT2.recipe",
    "--base": "FOLDER", "--name": "Another", "--pre": "qwen2", "--align": "65536", "--rms-eps": "0.5",
    "--context-length": "17", "--scheme": "w8a8", "--q-bits": "8", "--q-group-size": "32", "--q-mode": "mxfp4",
    "--act-order": "none", "--damp": "0.5", "--smooth": "0.5",
    "--recipe": "mixed_2_6|RECIPE", "--imatrix": "IMATRIX",
    "--include-weights": "blk|attn_q", "--exclude-weights": "blk",
    "--target-size": "1MB", "--target-bpw": "5", "--output-tensor-type": "q5_1", "--token-embedding-type": "q5_1",
    "--tensor-type": "attn_v=q4_1", "--tensor-type-file": "TYPES", "--prune-layers": "0",
    "--override-kv": "x.y=int:3", "--report": "OUT2.json", "--tp": "2", "--strip-prefix": "a", "--replace": "a zz",
    "--add-prefix": "y.", "--to-names": "canonical", "--layers": "0", "--experts": "0", "--keep": "*norm*",
    "--drop": "*norm*", "--get": "general.architecture", "--set": "c=d", "--set-array": "e=i32:[1]",
    "--device": "rtx3060", "--context": "1k", "--parallel": "3", "--cache-type": "q8_0",
    "--runtime": "vllm", "--type": "Q8_0", "--kv": "general.basename=mine", "--target-model": "FOLDER",
    "--task-adapter": "separation", "--text-model": "FOLDER",
    "--text": "TYPES", "--tokens": "7", "--runner": "ray", "--address": "auto", "--shard": "2/3",
    "--nodes": "7", "--cores": "9", "--network": "0.001", "--node-price": "99999", "--read-price": "99999",
    "--write-price": "99999", "--egress-price": "99999", "--calibrate": "1", "--ubatch": "64", "--remove": "format",
    "--chat-template": "TABLE", "--reserve": "64k", "--node-label": "pool=large", "--task-size": "16MiB",
    "--purpose": "train|keep",
    "--loss": "none|some", "--tensor": "a", "--block": "1", "--bins": "3", "--statistic": "bits",
    "--form": "Q4_0", "--host": "::1", "--port": "8123", "--token": "s3cret", "--idle": "7",
    "--store": "OUT2.s", "--mmproj": "GGUF", "--template": "none", "--system": "Be brief.", "--modelfile": "OUT2.m",
    "--signature": "OUT2.sig", "--key": "PUB", "--certificate": "KEY", "--trust-config": "KEY", "--ignore": "x",
    "--identity": "me", "--identity-provider": "https://example.org", "--format": "spdx|cyclonedx",
    "--shard-size": "1k", "--sbom": "OUT2.cdx.json", "--base-card": "FOLDER", "--timestamp": "2026-01-31",
    "--step": "3", "--launcher": "systemd", "--base-model": "me/base", "--measured": "TYPES", "--revision": "next",
    "--quality-report": "TYPES", "--lora-base": "FOLDER", "--comfy-quant": "fp8_scaled",
}  # fmt: skip
# Options whose effect no answer shows -> why.
UNSEEN: Mapping[str, str] = {
    "--jobs": "speed",
    "--max-memory": "memory; the plan says what is used of it",
    "--overwrite": "the target isn't there",
    "--replace-folder": "the target isn't there",
    "--resume": "nothing was interrupted",
    "--parents": "no parent is missing",
    "--engine": "the same sums from either: tests/forward/test_engines.py",
    "--allow-expand": "no pickle here expands a view",
    "--all-parts": "no training checkpoint here: tests/models/test_training_parts.py",
    "--allow-requantize": "allows, and changes nothing",
    "--allow-guarded": "allows, and changes nothing",
    "--inexact": "forbids, and changes nothing that is exact",
    "--lossless": "the same",
    "--allow-unproven": "allows, and all is proven",
    "--allow-dangerous": "allows, and all is data",
    "--allow-library": "accepts classes of a package, and the file names none",
    "--allow-unscanned": "allows, and all is scanned",
    "--fail-on": "an exit code, and nothing is found",
    "--values": "reads more, and all is well",
    "--tolerance": "nothing differs",
    "--allow-symlinks": "no link is here: tests/signature",
    "--arch-file": "the table is the built-in one",
    "--list": "what happens anyway",
    "--keep-ema": "nothing is averaged",
    "--weight": "all are the same model: tests/conversion/test_merging.py",
    "--seed": "the same",
    "--tokenizer-source": "all have the same tokens: tests/conversion/test_merging.py",
    "--parse-special": "the vocabulary has no special token: tests/forward/test_imatrix.py",
    "--all": "the pickle is short",
    "--runner": "who does the work",
    "--shard": "one share of one is all",
    "--replan": "nothing was planned",
    "--write-price": "a scan writes nothing",
    "--cross-region": "less than a cent leaves",
    "--processes": "speed",
    "--yes": "nobody is there to ask",
}


def options_of(name: str) -> Iterator[click.Option]:
    command: click.Command = load(next(row for row in COMMANDS if row.name == name.split()[0]))
    if isinstance(command, click.Group):
        command = command.commands[name.split()[1]]
    common = {opt for option in common_options() for opt in option.opts if opt.startswith("--")}
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and not common & set(param.opts):
            yield param


def flag_of(option: click.Option) -> str:
    return next(opt for opt in option.opts if opt.startswith("--"))


ROWS = [(name, use) for name, uses in USES.items() for use in uses]


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves until it is stopped prints instead what it was to serve, and how. Others' tests are offline."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    from weighbridge.adapters.serving import hub_server
    from weighbridge.adapters.serving import mount as mounting
    from weighbridge.page import viewing

    def run(shelf: Any, pullable: object, host: str, port: int, token: str | None, started: Any) -> None:
        print(host, port, token)
        started(port, None)

    def mount(files: Mapping[str, object], point: Path, started: Callable[[], None]) -> None:
        print(sorted(files), point)
        started()

    @wraps(viewing.view)
    def view(*settings: object, **options: object) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(SimpleNamespace(url=f"{settings} {options}", wait=lambda: None))

    monkeypatch.setattr(hub_server, "run", run)
    monkeypatch.setitem(sys.modules, "mfusepy", ModuleType("mfusepy"))  # without libfuse it can't be imported
    monkeypatch.setattr(mounting, "mount", mount)
    monkeypatch.setattr(viewing, "view", view)


@pytest.fixture(scope="module")
def words(
    sources: Mapping[str, Path],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, str]]:
    """The files that the words above stand for."""
    here = tmp_path_factory.mktemp("words")
    (here / "TYPES").write_text("attn_k=q4_1")
    (here / "RECIPE").write_text(".*=q5_0")
    (here / "TABLE").write_text((Path(__file__).parents[1] / "toys" / "toy_family.toml").read_text())
    (here / "TEXT").write_text("one two three " * 90)
    (here / "IMATRIX").write_bytes(imatrix_dat())
    main(["hash", str(sources["safetensors"]), "--manifest", str(here / "SUMS")])
    pem = make_key(here)
    pem.rename(here / "KEY")
    pem.with_suffix(".pub").rename(here / "PUB")
    main(["sign", str(sources["gguf"]), "--key", str(here / "KEY"), "--signature", str(here / "SIG")])
    (here / "MODELS").mkdir()
    for name in ("one", "two"):
        shutil.copy(sources["gguf"], here / "MODELS" / f"{name}.gguf")
    (here / "POINT").mkdir()
    for name in ("a", "b"):
        (here / "TWINS" / name).mkdir(parents=True)
        (here / "TWINS" / name / "model.safetensors").write_bytes(bytes(1 << 21))
    main(["convert", str(sources["folder"]), str(here / "MLX"), "--to", "mlx"])
    make_folder(here / "OTHER", tensors=llama_tensors(1))
    main(["pack", str(sources["folder"]), str(here / "PACKED")])
    models = {"FOLDER": "folder", "GGUF": "gguf", "ST": "safetensors", "PT": "torch", "ADAPTER": "adapter"}
    names = (
        "TYPES",
        "RECIPE",
        "TABLE",
        "TEXT",
        "IMATRIX",
        "SUMS",
        "MODELS",
        "TWINS",
        "MLX",
        "OTHER",
        "POINT",
        "KEY",
        "PUB",
        "SIG",
        "PACKED",
    )
    made = {word: here / word for word in names}
    found = {word: str(path) for word, path in {**made, **{w: sources[s] for w, s in models.items()}}.items()}
    with FileServer({"/m/x.bin": bytes(100)}).running() as server:
        yield {**found, "URL": f"{server.url}/m/x.bin"}


def expanded(command: str, words: Mapping[str, str], folder: Path) -> list[str]:
    """The arguments of a command with files in place of the words."""
    word = re.compile("[A-Z]{2,}[0-9]?(?=$|::|[.])")
    return [word.sub(lambda m: words.get(m[0], f"{folder}/{m[0]}"), part) for part in command.split()]


Answer = tuple[int, bytes, bytes, dict[str, bytes]]


def answer(command: str, words: Mapping[str, str], folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Answer:
    """The exit code, all that is printed, and all that is written."""
    folder.mkdir()
    if "COPY" in command:
        shutil.copy(words["GGUF"], folder / "COPY.gguf")
    argv = expanded(command, words, folder)
    code = main(argv)
    out, err = (stream.replace(str(folder).encode(), b"") for stream in capfdbinary.readouterr())
    return code, out, err, {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("name", "use"), ROWS, ids=[f"{name} {use}" for name, use in ROWS])
def test_no_option_is_ignored(
    name: str, use: str, words: Mapping[str, str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    options = list(options_of(name))
    ignored = []
    usual = answer(f"{name} {use}", words, tmp_path / "usual", capfdbinary)
    assert usual[0] in (0, 1), usual[2]
    for number, option in enumerate(options):
        flag = flag_of(option)
        if flag in use.split() or flag in UNSEEN or {*option.opts, *option.secondary_opts} & set(use.split()):
            continue
        values = [""] if option.is_flag else VALUES[flag].split("|")
        flags = [*option.secondary_opts, flag] if option.secondary_opts else [flag]  # one of the two is the default
        given = [f"{name} {use} {spelled} {value}" for spelled in flags for value in values]
        if all(answer(g, words, tmp_path / f"{number}-{i}", capfdbinary) == usual for i, g in enumerate(given)):
            ignored.append(flag)
    assert ignored == [], ignored


#: Options whose value selects by names -> a value that selects nothing. Their metavars, below, are those of no other.
PATTERNS: Mapping[str, str] = {
    "--include": "nix*", "--exclude": "nix*", "--keep": "nix*", "--drop": "nix*", "--tensor-type": "nix=q8_0",
    "--tensor-type-file": "NIX", "--include-weights": "nix", "--exclude-weights": "nix", "--strip-prefix": "nix.",
    "--replace": "nix a", "--kind": "nix", "--member": "nix", "--tensor": "nix", "--layers": "77", "--experts": "77",
    "--modules-to-save": "nix", "--prune-layers": "77", "--filter": "nix*|name=nix", "--get": "nix", "--remove": "nix",
}  # fmt: skip
#: Command and option -> a use in which the option applies, where the first in `USES` isn't one.
APPLIES: Mapping[tuple[str, str], str] = {
    ("quantize", "--include-weights"): "GGUF OUT.gguf Q4_0 --imatrix IMATRIX",
    ("quantize", "--exclude-weights"): "GGUF OUT.gguf Q4_0 --imatrix IMATRIX",
    ("slice", "--experts"): "FOLDER OUT", ("slice", "--layers"): "FOLDER OUT", ("slice", "--keep"): "FOLDER OUT",
    ("slice", "--drop"): "FOLDER OUT", ("rename", "--strip-prefix"): "ST OUT.safetensors",
    ("rename", "--replace"): "ST OUT.safetensors", ("stats", "--tensor"): "ST",
}  # fmt: skip
PATTERN_ROWS = [(name, flag_of(option)) for name in USES for option in options_of(name) if flag_of(option) in PATTERNS]


@pytest.mark.parametrize(("name", "flag"), PATTERN_ROWS, ids=[" ".join(row) for row in PATTERN_ROWS])
def test_a_pattern_that_matches_nothing_is_named(
    name: str, flag: str, words: Mapping[str, str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    use = APPLIES.get((name, flag), USES[name][0])
    (tmp_path / "NIX").write_text("nix=q8_0")
    values = PATTERNS[flag].split("|")
    value = values[-1] if name == "inspect" else values[0]
    line = f"{name} {use} {flag} {value}"
    code, out, err, _ = answer(line, {**words, "NIX": str(tmp_path / "NIX")}, tmp_path / "out", capfdbinary)
    told = (out + err).decode()
    assert code in (1, 2) or "matches" in told, told
    assert re.search(r"nix|77|no experts", told), told


def test_every_option_that_selects_by_names_is_tried() -> None:
    selecting = re.compile("GLOB|REGEX|PATTERN|PREFIX|KIND|EXPR")
    found = {flag_of(o) for name in USES for o in options_of(name) if o.metavar and selecting.search(o.metavar)}
    assert found - {"--add-prefix"} <= set(PATTERNS)


def test_every_option_has_a_value() -> None:
    named = {flag_of(option) for name in USES for option in options_of(name) if not option.is_flag}
    assert named - UNSEEN.keys() <= VALUES.keys()
    assert {row.name for row in COMMANDS} == {name.split()[0] for name in USES}
