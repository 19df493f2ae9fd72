"""Servers that read a model in place: llama-server with the settings that `wb fit` computes, vLLM and mlx-lm with
checks of their requirements.

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
from weighbridge.base.words import plural
from weighbridge.fitting.report import FitReport, fit
from weighbridge.models.clients import ClientVerdict, in_mlx_lm, loads, packaging
from weighbridge.models.llamacpp.companions import find_towers
from weighbridge.models.llamacpp.towers import has_towers
from weighbridge.models.mlxlm.towers import is_of_mlx_vlm
from weighbridge.models.model import OpenModel
from weighbridge.models.not_a_model import check_names
from weighbridge.models.open import open_headers
from weighbridge.models.transform.text_config import text_of_config
from weighbridge.models.whisper.forms import WhisperForm, form_of
from weighbridge.shipping.model import in_place, is_gguf, refuse_modelfile
from weighbridge.shipping.plan import ShipCheck, ShipPlan, ShipReport, ShipRequest, text_plan
from weighbridge.shipping.targets import convert_line, server_flags

FORMS: Final = ("command", "systemd", "compose")
_PORT: Final = 8080
#: Quantization methods that vLLM 0.33 loads.
VLLM_METHODS: Final = frozenset(
    ("gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq", "compressed-tensors", "fp8", "modelopt")
) | {"modelopt_fp4", "modelopt_mxfp8", "quark", "torchao", "mxfp4", "gpt_oss_mxfp4", "inc", "auto-round", "fbgemm_fp8"}
_MLX_METHODS: Final = frozenset(("mlx", "awq", "gptq", "compressed-tensors", "mxfp4", "bitnet", "fp8"))
#: Tokenizers that the servers load through transformers and mistral-common; Weighbridge reads more (models/tokenizer).
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")


# ------------------------------------------------------------------------------------------------ llama-server


def llama_server(request: ShipRequest) -> ShipPlan:
    """Plans llama-server's command line, a systemd unit or a compose file."""
    options = request.options
    form = options.launcher or "command"
    if form not in FORMS:
        raise UsageError(f"unknown launcher {form!r}", hint=", ".join(FORMS))
    with open_headers(request.path, request.source).model as model:
        convert = convert_line(request.path, has_towers(model))
        if model.format != "gguf":
            _check_language(model, request.path)
            raise UnsupportedError("llama-server reads GGUF only", hint=convert)
        if (packed := packaging(model)) is not None:
            raise UnsupportedError(f"llama-server doesn't read {packed.reason}", hint=packed.unpack)
        if not in_place(model):
            raise UnsupportedError("the GGUF is part of a llamafile", hint=f"run {request.path}, or {convert}")
        if not all(map(is_gguf, model.place.adapters)):
            raise UnsupportedError("llama-server reads only adapters that are GGUFs", hint=f"merge it: {convert}")
        weights, keys = model.place.weights[0].absolute(), model.metadata
        extra = [("--lora", path.absolute()) for path in model.place.adapters]
        check = _loads_check(loads(model))
        found = find_towers(request.path, model, options.mmproj)
        flags = server_flags(request.path, keys, model.place.weights[0], found.path)
    if found.path is not None:
        extra.insert(0, ("--mmproj", found.path.absolute()))
    fitted, notes = _fit(request, found.path)
    notes = (*found.notes, *notes)
    o = request.options
    arguments = ["llama-server", "-m", str(weights)]
    arguments += [part for option, path in extra for part in (option, str(path))]
    if context := (fitted.context if fitted else o.context):
        arguments += ["-c", str(context)]
    if o.parallel:
        arguments += ["-np", str(o.parallel)]
    if fitted is not None and fitted.device.separate:
        arguments += ["-ngl", str(fitted.placement.offloaded)]
    if o.cache_type and (cache := o.cache_type.lower()) != "f16":
        arguments += ["-ctk", cache, "-ctv", cache, "-fa", "on"]
    arguments += flags
    if request.name:
        arguments += ["--alias", request.name]
    arguments = [*arguments, "--port", str(_PORT)]
    command = shlex.join(arguments)
    place = str(options.output or {"systemd": "llama-server.service", "compose": "compose.yaml"}.get(form, ""))
    run: tuple[str, ...]
    if form == "systemd":
        text, unit = systemd(arguments, weights), Path(place).name
        run = (f"sudo cp {shlex.quote(place)} /etc/systemd/system/", f"sudo systemctl enable --now {unit}")
    elif form == "compose":
        text, run = compose(arguments, weights, fitted), (f"docker compose -f {shlex.quote(place)} up -d",)
    else:
        text, run = command + "\n", (f"sh {shlex.quote(place)}" if place else command,)
    name = request.name or weights.stem
    report = ShipReport("llama-server", str(request.path), name, (), run, text, (check,), notes)
    if options.output is None:
        return ShipPlan(report)
    return text_plan(report, options.output, options.launcher or "text", options.overwrite)


def _check_language(model: OpenModel, path: Path) -> None:
    """Raises UnsupportedError for files that no conversion makes a language model of llama.cpp."""
    if (form := form_of(model)) is not None:
        place = shlex.quote(str(path))
        run = f"whisper-cli -m {place}" if form is WhisperForm.GGML else f"wb convert {place} ggml-NAME.bin"
        raise UnsupportedError("llama-server runs no Whisper", hint=f"whisper.cpp does: {run}")
    if model.makes_pictures:
        title = model.diffusion.title if model.diffusion is not None else "pipeline of an image or video model"
        hint = "ComfyUI-GGUF reads the GGUF that wb convert and wb quantize write of it"
        raise UnsupportedError(f"llama-server runs no {title}", hint=hint)
    check_names(path, model.index.by_name)


def _fit(request: ShipRequest, mmproj: Path | None) -> tuple[FitReport | None, tuple[str, ...]]:
    """Returns the report of `wb fit` and its notes; None if it has no rule for the model."""
    o = request.options
    try:
        report = fit(
            request.path, device=o.device, context=o.context, parallel=o.parallel, cache_type=o.cache_type,
            arch_file=o.arch_file, mmproj=mmproj,
        )  # fmt: skip
    except (UnsupportedError, FormatError) as error:
        return None, (f"no settings by wb fit: {error.message}",)
    return report, (_verdict(report), *report.notes)


def _verdict(report: FitReport) -> str:
    needs = f"{report.needs:,} bytes with a context of {report.context:,}"
    return f"{report.verdict} on {report.device.name}: {needs}"


def systemd(arguments: Sequence[str], weights: Path) -> str:
    """Returns a unit (systemd.service(5)). Every argument is quoted, with `%` and `$` escaped."""
    command, *rest = arguments
    line = " ".join([f"/usr/local/bin/{command}", *map(_unit_quoted, rest)])
    name = re.sub(r"[\x00-\x1f\x7f]", "?", weights.name).replace("%", "%%")
    return (
        "[Unit]\n"
        f"Description=llama-server with {name}\n"
        "After=network-online.target\nWants=network-online.target\n\n"
        "[Service]\n"
        f"ExecStart={line}\n"
        "Restart=on-failure\nDynamicUser=yes\nProtectSystem=strict\nNoNewPrivileges=yes\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _unit_quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./:=+,-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", escaped) + '"'


def compose(arguments: Sequence[str], weights: Path, report: FitReport | None) -> str:
    """Returns a compose file with JSON-quoted strings and `$` escaped."""
    cuda = report is not None and report.device.kind == "cuda"
    image = f"ghcr.io/ggml-org/llama.cpp:server{'-cuda' if cuda else ''}"
    container_arguments = [_container_path(part, weights) for part in arguments[1:]]
    lines = [
        "services:", "  llama-server:", f"    image: {image}", "    restart: unless-stopped",
        "    ports:", f'      - "127.0.0.1:{_PORT}:{_PORT}"', "    volumes:",
        "      - type: bind", f"        source: {_yaml(str(weights.parent))}", "        target: /models",
        "        read_only: true", "    command:",
        *(f"      - {_yaml(part)}" for part in (*container_arguments, "--host", "0.0.0.0")),
    ]  # fmt: skip
    if cuda:
        lines.append(
            "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}"
        )
    return "\n".join(lines) + "\n"


def _container_path(argument: str, weights: Path) -> str:
    """Returns an argument with the path of a file in the model's folder as in the container."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    if path.parent == weights.parent:
        return f"/models/{path.name}"
    raise UnsupportedError(f"{path} isn't next to the model, so the container doesn't see it",
                           hint="put both files in one folder")  # fmt: skip


def _yaml(text: str) -> str:
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)


# ------------------------------------------------------------------------------------------------ vLLM, MLX


def vllm(request: ShipRequest) -> ShipPlan:
    """Checks vLLM's requirements, and plans the command."""
    refuse_modelfile(request.path, "vLLM")
    with open_headers(request.path, request.source).model as model:
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


def _vllm_checks(model: OpenModel) -> Iterator[ShipCheck]:
    ok = model.format == "safetensors"
    size = f"{plural(len(model.index.entries), 'tensor')} in {plural(len(model.place.weights), 'file')}"
    convert = f"wb convert {shlex.quote(str(model.place.path))} DST --to hf"
    wrong = f"the weights are {model.format}, but vLLM 0.33 reads safetensors: {convert}"
    yield ShipCheck("weights", ok, size if ok else wrong)
    if is_of_mlx_vlm(model.config, model.index):
        yield ShipCheck("names", False, f"those of mlx-vlm, which vLLM doesn't know: {convert}")
    yield from _folder_checks(model)
    names = {p.name for p in model.place.folder.iterdir()}
    if "config.json" in names and any(n.startswith("consolidated") and n.endswith(".safetensors") for n in names):
        yield ShipCheck("one format", False, "consolidated*.safetensors: vLLM would read them instead of the others")
    method = method_of(model)
    wrong = f"vLLM 0.33 doesn't load {method}: {convert} --dtype bf16 unpacks it"
    yield ShipCheck("quantization", vllm_loads(method), str(method or "none") if vllm_loads(method) else wrong)


def quantization_method(config: Mapping[str, Any], quant_config: Mapping[str, Any] | None = None) -> Any:
    """Returns the method in config.json, searched like in vLLM; "MLX" for mlx-lm's packing. `quant_config`:
    hf_quant_config.json."""
    if "quantization" in config and "quant_method" not in (config.get("quantization_config") or {}):
        return "MLX"
    settings = config.get("quantization_config") or text_of_config(config).get("quantization_config")
    settings = settings or config.get("compression_config") or (quant_config or {}).get("quantization")
    if not isinstance(settings, dict):
        return None
    method = settings.get("quant_method") or settings.get("quant_algo")
    return "modelopt" if method is not None and "quant_method" not in settings else method


def method_of(model: OpenModel) -> Any:
    """Returns the quantization method in the JSON files of a folder."""
    return quantization_method(model.json("config.json") or {}, model.json("hf_quant_config.json"))


def vllm_loads(method: Any) -> bool:
    """Returns whether vLLM loads weights with this method. None: unquantized."""
    return method is None or str(method).lower() in VLLM_METHODS


def _folder_checks(model: OpenModel) -> Iterator[ShipCheck]:
    """Checks files, config.json, tokenizer and chat template, and reports shards that the index doesn't list."""
    if (packed := packaging(model)) is not None:
        yield ShipCheck("files", False, f"{packed.reason}: {packed.unpack}")
    folder = model.place.folder
    config = model.json("config.json") or {}
    classes = config.get("architectures")
    yield ShipCheck("config.json", bool(config), str(classes[0]) if isinstance(classes, list) and classes else
                    ("there" if config else "config.json is missing"))  # fmt: skip
    tokenizer = next((n for n in _TOKENIZERS if (folder / n).is_file()), None)
    yield ShipCheck("tokenizer", tokenizer is not None, tokenizer or f"none of {', '.join(_TOKENIZERS)} exists")
    settings = model.json("tokenizer_config.json") or {}
    chat = (folder / "chat_template.jinja").is_file() or bool(settings.get("chat_template"))
    yield ShipCheck("chat template", True, "there" if chat else "none: completions work, chats don't")
    listed = {p.name for p in model.place.weights}
    if extra := sorted(p.name for p in folder.glob("*.safetensors") if p.name not in listed):
        yield ShipCheck("shards", True, f"not in the index, and not read: {', '.join(extra[:3])}")


def _device_notes(request: ShipRequest, runtime: str) -> tuple[str, ...]:
    """Returns whether the model fits on the requested device."""
    o = request.options
    if o.device is None:
        return ()
    return (_verdict(fit(request.path, device=o.device, context=o.context, runtime=runtime, arch_file=o.arch_file)),)


def mlx(request: ShipRequest) -> ShipPlan:
    """Checks mlx-lm's requirements, and plans the commands."""
    if request.options.context is not None and request.options.device is None:
        raise UsageError("mlx-lm has no token limit: --context is the length to fit on --device",
                         hint="add --device")  # fmt: skip
    refuse_modelfile(request.path, "mlx-lm")
    with open_headers(request.path, request.source).model as model:
        checks, program = tuple(_mlx_checks(model)), "mlx_vlm" if is_of_mlx_vlm(model.config, model.index) else "mlx_lm"
    place = shlex.quote(str(request.path if request.path.is_dir() else request.path.parent))
    run = (f"{program}.chat --model {place}", f"{program}.server --model {place}")
    notes = _device_notes(request, "mlx")
    return ShipPlan(ShipReport("mlx", str(request.path), request.name, (), run, checks=checks, notes=notes))


def _mlx_checks(model: OpenModel) -> Iterator[ShipCheck]:
    names = {p.name for p in model.place.weights}
    ok = model.format == "safetensors" and all(n.startswith("model") for n in names)
    convert = f"wb convert {shlex.quote(str(model.place.path))} DST --to mlx"
    wrong = f"mlx-lm reads model*.safetensors: {convert}"
    yield ShipCheck("weights", ok, plural(len(names), "file") if ok else wrong)
    yield from _folder_checks(model)
    method = method_of(model)
    loads = method is None or str(method).lower() in _MLX_METHODS
    yield ShipCheck("quantization", loads, str(method or "none") if loads else
                    f"mlx-lm doesn't load {method}: {convert} --q-bits 4")  # fmt: skip
    if form_of(model) is not None:
        yield ShipCheck("model", False, "mlx-lm runs no Whisper")
    elif is_of_mlx_vlm(model.config, model.index):
        yield ShipCheck("model", True, f"mlx-vlm has a class for {model.config['model_type']}")
    elif ok:
        yield _loads_check(in_mlx_lm(model))


def _loads_check(verdict: ClientVerdict) -> ShipCheck:
    unknown = f"not checked: Weighbridge has no table of this model in {verdict.client}"
    message = verdict.why or (unknown if verdict.accepts is None else f"{verdict.client} loads it")
    return ShipCheck("model", verdict.accepts is not False, message)
