"""Where configs name code: in which file, at which place in its JSON, and which loader imports it.

Each row is from the loader's source: the value is imported, or a file of that name is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from weighbridge.reports.scan import names

Test = Callable[[Any], str | None]


class NamedCode(NamedTuple):
    """In files that match `file`, the value at `path` (`*`: any key or index, `**`: any depth) names code if `name`
    returns a name."""

    file: str
    path: tuple[str | int, ...]
    rule: str
    loader: str
    name: Test


# Modules of diffusers.pipelines that a model_index.json names, besides the libraries themselves.
_PIPELINES: Final = frozenset("".join((
    "allegro alt_diffusion amused animatediff audio_diffusion audioldm audioldm2 aura_flow blip_diffusion ",
    "bria chroma cogvideo cogview3 cogview4 consisid consistency_models controlnet cosmos dance_diffusion ",
    "ddim ddpm deepfloyd_if diffusers dit easyanimate flax flux framepack hidream_image hunyuan_video ",
    "hunyuandit i2vgen_xl kandinsky kandinsky2_2 kandinsky3 kolors latent_diffusion ",
    "latent_diffusion_uncond latte ledits_pp ltx lumina lumina2 marigold mochi musicldm omnigen ",
    "onnxruntime optimum pag paint_by_example pixart_alpha pndm qwenimage repaint sana score_sde_ve ",
    "semantic_stable_diffusion shap_e skyreels_v2 spectrogram_diffusion stable_audio stable_cascade ",
    "stable_diffusion stable_diffusion_3 stable_diffusion_gligen stable_diffusion_safe ",
    "stable_diffusion_xl stable_video_diffusion stochastic_karras_ve t2i_adapter text_to_video_synthesis ",
    "transformers unclip unidiffuser versatile_diffusion visualcloze vq_diffusion wan wuerstchen ",
)).split())  # fmt: skip
DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
# Modules of numpy whose path contains a name of the standard library.
_NUMPY_RANDOM: Final = tuple(f"numpy.random.{module}" for module in (
    "mtrand", "bit_generator", "_generator", "_pickle", "_pcg64", "_mt19937", "_philox", "_sfc64",
))  # fmt: skip
_LIBRARIES: Final = ("transformers", "diffusers", "torch", "timm", "sentence_transformers", "open_clip")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _unless(*packages: str) -> Test:
    """A module outside these packages."""
    return lambda value: _foreign(value, f"{value}.X", packages) if value not in packages else None


def _class(*packages: str) -> Test:
    """A dotted `module.Class` outside these packages."""
    return lambda value: _foreign(value, value, packages) if DOTTED.fullmatch(_text(value) or "") else None


def _foreign(value: Any, dotted: str, packages: tuple[str, ...]) -> str | None:
    """The text `value`, unless `dotted` is a class in one of these packages."""
    text = _text(value)
    return None if text is None or names.is_accepted(dotted, packages) else text


def _component(value: Any) -> str | None:
    """A component of a pipeline: [module, class]."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        return None
    return None if value[0] in _PIPELINES else f"{value[0]}.{value[1]}"


# Keys of a model's config, or of a part's (text_config): a name, or one for each part.
_KERNELS: Final = (
    "attn_implementation", "_attn_implementation", "_attn_implementation_internal", "experts_implementation",
)  # fmt: skip
_TRUST: Final = "imports it when the model is loaded"
TABLE: Final = (
    NamedCode("config.json", ("model_file",), "config/own-code", f"mlx_lm {_TRUST}", _text),
    NamedCode("modules.json", ("*", "type"), "config/named-class", f"sentence-transformers {_TRUST}",
              lambda value: _foreign(value, value, ("sentence_transformers",))),
    NamedCode("config_sentence_transformers.json", ("model_type",), "config/named-class",
              f"sentence-transformers {_TRUST}", lambda v: v if isinstance(v, str) and "." in v else None),
    *(NamedCode(file, ("types", "*"), "config/named-class", f"sentence-transformers {_TRUST}",
                _class("sentence_transformers")) for file in ("router_config.json", "config.json")),
    *(NamedCode("config.json", path, "config/named-class", f"sentence-transformers {_TRUST}",
                _class("sentence_transformers", "torch", "transformers"))
      for path in (("sbert_ce_default_activation_function",), ("sentence_transformers", "activation_fn"),
                   ("activation_function",))),
    NamedCode("config.json", ("**", "type"), "config/named-class", f"AllenNLP {_TRUST}",
              _class("allennlp", *_LIBRARIES)),
    NamedCode("model_index.json", ("_class_name",), "config/own-code", f"diffusers {_TRUST}",
              lambda value: f"{value[0]}.{value[-1]}" if isinstance(value, list) and value else None),
    NamedCode("model_index.json", ("*",), "config/named-class", f"diffusers {_TRUST}", _component),
    NamedCode("adapter_config.json", ("auto_mapping", "parent_library"), "config/named-class", f"peft {_TRUST}",
              _unless(*_LIBRARIES)),
    NamedCode("adapter_config.json", ("megatron_core",), "config/named-class", f"peft {_TRUST}", _unless("megatron")),
    NamedCode("configuration.json", ("plugins", "*"), "config/named-class", f"ModelScope {_TRUST}", _text),
    NamedCode("configuration.json", ("allow_remote",), "config/trust", "ModelScope runs code of the repository",
              lambda v: "allow_remote" if v is True else None),
    # `owner/kernel`: a kernel of the Hub
    *(NamedCode("config.json", path, "config/remote-code", "transformers fetches the kernel and runs it",
                lambda value: value if isinstance(value, str) and "/" in value else None)
      for key in _KERNELS for path in ((key,), (key, "*"), ("*", key), ("*", key, "*"))),
    NamedCode("schema.json", ("**", "__module__"), "config/named-class", f"skops {_TRUST}",
              _unless("sklearn", "numpy", "scipy", "builtins", "collections", *_NUMPY_RANDOM)),
)  # fmt: skip


def named(file: str, value: Any) -> Iterator[tuple[NamedCode, str]]:
    """The rows that apply to a file's JSON, each with the name of the code."""
    for row in TABLE:
        if fnmatchcase(file, row.file):
            for candidate in _values_at(value, row.path):
                name = row.name(candidate)
                if name is not None:
                    yield row, name


def _values_at(value: Any, path: tuple[str | int, ...]) -> Iterator[Any]:
    if not path:
        yield value
        return
    step, *further = path
    if step == "**":  # the value and all objects and lists in it
        inner, stack, seen = [], [value], set[int]()  # YAML's aliases repeat collections, and may form cycles
        while stack:
            node = stack.pop()
            if isinstance(node, dict | list) and id(node) not in seen:
                seen.add(id(node))
                inner.append(node)
                stack += node.values() if isinstance(node, dict) else node
    elif isinstance(value, dict):
        inner = [v for k, v in value.items() if step in ("*", k)]
    else:
        inner = value if isinstance(value, list) and step == "*" else []
    for child in inner:
        yield from _values_at(child, tuple(further))
