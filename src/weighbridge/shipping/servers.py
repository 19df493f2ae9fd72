"""Servers that read a model where it lies: the command with the settings that `wb fit` computes, or what they miss.

Sources: llama.cpp b11549 (common/arg.cpp); vLLM 0.33.0 (model_executor/model_loader/default_loader.py,
model_executor/layers/quantization); mlx-lm d78bf58 (utils.py).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.conversion.result import Progress
from weighbridge.fitting.report import FitReport, fit
from weighbridge.io.sink import write_file
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.modelfile import is_modelfile
from weighbridge.shipping.model import in_place, opened, own_adapters, refuse_modelfile
from weighbridge.shipping.plan import ShipCheck, ShippedFile, ShipPlan, ShipReport, ShipRequest

FORMS: Final = ("command", "systemd", "compose")
_PORT: Final = 8080
#: Quantization methods that vLLM 0.33 loads.
VLLM_METHODS: Final = frozenset(
    ("gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq", "compressed-tensors", "fp8", "modelopt")
) | {"modelopt_fp4", "modelopt_mxfp8", "quark", "torchao", "mxfp4", "gpt_oss_mxfp4", "inc", "auto-round", "fbgemm_fp8"}
#: What the servers load, through transformers and mistral-common; Weighbridge reads others too (models/tokenizer).
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")


# ------------------------------------------------------------------------------------------------ llama-server


def llama_server(request: ShipRequest) -> ShipPlan:
    """llama-server's command line, or the same as a systemd unit or a compose file."""
    options = request.options
    form = options.form or "command"
    if form not in FORMS:
        raise UsageError(f"no form is called {form!r}", hint=", ".join(FORMS))
    with opened(request.path) as model:
        if model.format != "gguf":
            raise UnsupportedError("llama-server reads GGUF only", hint=f"wb convert {request.path} model.gguf")
        if not in_place(model):
            words = "the GGUF is a part of a llamafile"
            raise UnsupportedError(words, hint=f"run {request.path} itself, or wb convert {request.path} model.gguf")
        weights, keys = model.place.weights[0].absolute(), dict(model.metadata)
        if not own_adapters(model):
            words = "llama-server reads adapters that are GGUFs"
            raise UnsupportedError(words, hint=f"merge it: wb convert {request.path} model.gguf")
        adapters = [path.absolute() for path in model.place.adapters]
        projectors = [] if is_modelfile(request.path) else _projectors(weights)
    if options.mmproj is not None:
        projectors = [Path(options.mmproj).absolute()]
    report, notes = _fitted(request)
    extra = [*(("--mmproj", path) for path in projectors), *(("--lora", path) for path in adapters)]
    arguments = _arguments(weights, keys, extra, report, request)
    command = shlex.join(arguments)
    text = {"command": lambda: command + "\n", "systemd": lambda: systemd(arguments, weights),
            "compose": lambda: compose(arguments, weights, report)}[form]()  # fmt: skip
    name = request.name or weights.stem
    run = _start(form, command, options.output)
    return _written(request, ShipReport("llama-server", str(request.path), name, (), run, text, notes=notes))


def _start(form: str, command: str, output: str | Path | None) -> tuple[str, ...]:
    place = str(output) if output else {"systemd": "llama-server.service", "compose": "compose.yaml"}.get(form, "")
    unit = Path(place).name
    return {
        "command": (f"sh {shlex.quote(place)}",) if output else (command,),
        "systemd": (f"sudo cp {shlex.quote(place)} /etc/systemd/system/", f"sudo systemctl enable --now {unit}"),
        "compose": (f"docker compose -f {shlex.quote(place)} up -d",),
    }[form]


def _projectors(weights: Path) -> list[Path]:
    """A projector beside the model; none where several are there."""
    found = [p for p in weights.parent.glob("*mmproj*.gguf") if p != weights]
    return found if len(found) == 1 else []


def _fitted(request: ShipRequest) -> tuple[FitReport | None, tuple[str, ...]]:
    """The report of `wb fit` on the file, and its text; None where it has no rule for the model."""
    o = request.options
    try:
        report = fit(request.path, device=o.device or "this", context=o.context, parallel=o.parallel, kv=o.kv or "f16")
    except (UnsupportedError, FormatError) as error:
        return None, (f"no settings by wb fit: {error.message}",)
    return report, (_verdict(report), *report.notes)


def _verdict(report: FitReport) -> str:
    needs = f"{report.needs:,} bytes with a context of {report.context:,}"
    return f"{report.verdict} on {report.device.name}: {needs}"


def _arguments(
    weights: Path, keys: Mapping[str, Any], extra: Sequence[tuple[str, Path]], report: FitReport | None,
    request: ShipRequest,
) -> list[str]:  # fmt: skip
    """The arguments, in the order of llama-server's own help. `extra`: further files, each with its option."""
    o = request.options
    given = ["llama-server", "-m", str(weights)]
    given += [part for option, path in extra for part in (option, str(path))]
    if context := (report.context if report else o.context):
        given += ["-c", str(context)]
    if o.parallel:
        given += ["-np", str(o.parallel)]
    if report is not None and report.device.separate:
        given += ["-ngl", str(report.placement.offloaded)]
    if o.kv and o.kv.lower() != "f16":
        given += ["-ctk", o.kv.lower(), "-ctv", o.kv.lower(), "-fa", "on"]
    if f"{keys.get('general.architecture')}.pooling_type" in keys:
        given += ["--embedding"]
    if request.name:
        given += ["--alias", request.name]
    return [*given, "--port", str(_PORT)]


def systemd(arguments: Sequence[str], weights: Path) -> str:
    """A unit (systemd.service(5)); every argument is quoted, and `%` and `$` stand for themselves."""
    command, *rest = arguments
    line = " ".join([f"/usr/local/bin/{command}", *map(_unit_quoted, rest)])
    return (
        "[Unit]\n"
        f"Description=llama-server with {_one_line(weights.name)}\n"
        "After=network-online.target\nWants=network-online.target\n\n"
        "[Service]\n"
        f"ExecStart={line}\n"
        "Restart=on-failure\nDynamicUser=yes\nProtectSystem=strict\nNoNewPrivileges=yes\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _one_line(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "?", text).replace("%", "%%")


def _unit_quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./:=+,-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", escaped) + '"'


def compose(arguments: Sequence[str], weights: Path, report: FitReport | None) -> str:
    """A compose file, in JSON's spelling of YAML's strings; `$` stands for itself."""
    cuda = report is not None and report.device.kind == "cuda"
    image = f"ghcr.io/ggml-org/llama.cpp:server{'-cuda' if cuda else ''}"
    inside = [_inside(part, weights) for part in arguments[1:]]
    lines = [
        "services:", "  llama-server:", f"    image: {image}", "    restart: unless-stopped",
        "    ports:", f'      - "127.0.0.1:{_PORT}:{_PORT}"', "    volumes:",
        "      - type: bind", f"        source: {_yaml(str(weights.parent))}", "        target: /models",
        "        read_only: true", "    command:",
        *(f"      - {_yaml(part)}" for part in (*inside, "--host", "0.0.0.0")),
    ]  # fmt: skip
    if cuda:
        lines.append(
            "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}"
        )
    return "\n".join(lines) + "\n"


def _inside(part: str, weights: Path) -> str:
    """A path below the model's folder as the container sees it."""
    path = Path(part)
    if path.is_absolute() and path.parent == weights.parent:
        return f"/models/{path.name}"
    if path.is_absolute():
        raise UnsupportedError(f"{path} isn't beside the model, which is all that the container sees",
                               hint="put both files into one folder")  # fmt: skip
    return part


def _yaml(text: str) -> str:
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)


def _written(request: ShipRequest, report: ShipReport) -> ShipPlan:
    """The plan of writing the report's text where --output says so."""
    output = request.options.output
    if output is None:
        return ShipPlan(report)
    target, data = Path(output), report.text.encode()
    file = ShippedFile(str(target), len(data), request.options.form or "text", "written")

    def act(progress: Progress | None) -> tuple[ShippedFile, ...]:
        write_file(target, data, overwrite=request.options.overwrite)
        return (file,)

    return ShipPlan(ShipReport(**{**_fields(report), "files": (file,)}), act)


def _fields(report: ShipReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


# ------------------------------------------------------------------------------------------------ vLLM, MLX


def vllm(request: ShipRequest) -> ShipPlan:
    """What vLLM needs, and the command."""
    refuse_modelfile(request.path, "vLLM")
    with opened(request.path) as model:
        checks = tuple(_vllm_checks(model))
    folder = request.path if request.path.is_dir() else request.path.parent
    command = ["vllm", "serve", str(folder)]
    if request.options.context:
        command += ["--max-model-len", str(request.options.context)]
    if request.name:
        command += ["--served-model-name", request.name]
    notes = _device_notes(request, "vllm")
    return ShipPlan(ShipReport("vllm", str(request.path), request.name, (), (shlex.join(command),), checks=checks,
                               notes=notes))  # fmt: skip


def _vllm_checks(model: Checkpoint) -> Iterator[ShipCheck]:
    if model.format != "safetensors":
        words = f"the weights are {model.format}; vLLM 0.33 reads safetensors"
        way = (
            "pip install vllm-gguf-plugin, or convert the original" if model.format == "gguf" else "wb convert --to hf"
        )
        yield ShipCheck("weights", False, f"{words}: {way}")
    else:
        yield ShipCheck("weights", True, f"{len(model.index.entries):,} tensors in {len(model.place.weights)} files")
    yield from _folder_checks(model)
    names = {p.name for p in model.place.folder.iterdir()}
    mixed = any(n.startswith("consolidated") and n.endswith(".safetensors") for n in names)
    if mixed and "config.json" in names:
        yield ShipCheck(
            "one format", False, "consolidated*.safetensors beside the others: vLLM would read those instead"
        )
    yield _method_check(_quantization(model))


def _quantization(model: Checkpoint) -> Any:
    """The method by config.json, as vLLM looks for it; "MLX" for mlx-lm's own."""
    config = model.json("config.json") or {}
    inner = config.get("text_config")
    found = config.get("quantization_config") or (inner if isinstance(inner, dict) else {}).get("quantization_config")
    found = found or config.get("compression_config") or (model.json("hf_quant_config.json") or {}).get("quantization")
    if "quantization" in config and "quant_method" not in (config.get("quantization_config") or {}):
        return "MLX"
    method = found.get("quant_method") or found.get("quant_algo") if isinstance(found, dict) else None
    return "modelopt" if isinstance(found, dict) and method is not None and "quant_method" not in found else method


def _method_check(method: Any) -> ShipCheck:
    if method is None:
        return ShipCheck("quantization", True, "none")
    if str(method).lower() in VLLM_METHODS:
        return ShipCheck("quantization", True, str(method))
    hint = "wb convert SRC DST --scheme w4a16 (or fp8) makes one that it loads"
    return ShipCheck("quantization", False, f"vLLM 0.33 doesn't load {method}: {hint}")


def _folder_checks(model: Checkpoint) -> Iterator[ShipCheck]:
    """config.json, tokenizer, chat template, and every shard that the index lists."""
    folder = model.place.folder
    config = model.json("config.json") or {}
    named = config.get("architectures")
    yield ShipCheck("config.json", bool(config), str(named[0]) if isinstance(named, list) and named else
                    ("there" if config else "config.json is missing"))  # fmt: skip
    tokenizer = next((n for n in _TOKENIZERS if (folder / n).is_file()), None)
    yield ShipCheck("tokenizer", tokenizer is not None, tokenizer or f"none of {', '.join(_TOKENIZERS)} is there")
    settings = model.json("tokenizer_config.json") or {}
    chat = (folder / "chat_template.jinja").is_file() or bool(settings.get("chat_template"))
    yield ShipCheck("chat template", True, "there" if chat else "none: completions work, chats don't")
    listed = {p.name for p in model.place.weights}
    extra = sorted(p.name for p in folder.glob("*.safetensors") if p.name not in listed)
    if extra:
        yield ShipCheck("shards", True, f"not in the index, and not read: {', '.join(extra[:3])}")


def _device_notes(request: ShipRequest, runtime: str) -> tuple[str, ...]:
    """Whether it fits, where a device was named."""
    o = request.options
    if o.device is None:
        return ()
    report = fit(request.path, device=o.device, context=o.context, runtime=runtime)
    return (_verdict(report),)


def mlx(request: ShipRequest) -> ShipPlan:
    """What mlx-lm needs, and the commands."""
    if request.options.context is not None and request.options.device is None:
        raise UsageError("mlx-lm has no limit of tokens: --context says what is to fit on --device",
                         hint="name the --device")  # fmt: skip
    refuse_modelfile(request.path, "mlx-lm")
    with opened(request.path) as model:
        checks = tuple(_mlx_checks(model))
    place = shlex.quote(str(request.path if request.path.is_dir() else request.path.parent))
    run = (f"mlx_lm.chat --model {place}", f"mlx_lm.server --model {place}")
    notes = _device_notes(request, "mlx")
    return ShipPlan(ShipReport("mlx", str(request.path), request.name, (), run, checks=checks, notes=notes))


def _mlx_checks(model: Checkpoint) -> Iterator[ShipCheck]:
    names = {p.name for p in model.place.weights}
    ok = model.format == "safetensors" and all(n.startswith("model") for n in names)
    words = f"{len(names)} files" if ok else "mlx-lm reads model*.safetensors: wb convert SRC DST --to mlx"
    yield ShipCheck("weights", ok, words)
    yield from _folder_checks(model)
    method = _quantization(model)
    loads = method is None or str(method).lower() in (
        "mlx",
        "awq",
        "gptq",
        "compressed-tensors",
        "mxfp4",
        "bitnet",
        "fp8",
    )
    yield ShipCheck("quantization", loads, str(method or "none") if loads else
                    f"mlx-lm doesn't load {method}: wb convert SRC DST --to mlx -q")  # fmt: skip
