"""Texts that run, for the fuzzer: YAML and JSON with tags and names that loaders call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

Made = tuple[bytes, str]

# ---- YAML

_TAGS: Final = (
    "python/object/apply:os.system",
    "python/name:os.system",
    "python/module:os",
    "python/object:os.Thing",
    "python/object/new:os.system",
    "python/name:no_such.x",
    "python/tuple",
    "python/object/apply:builtins.eval",
    "python/object/new:builtins.type",
)
_YAML_NAMES: Final = ("hparams.yaml", "config.yml", "MLmodel", "hyperparams.yaml", "x.dvc")


#: Where names of code are called by loaders, in YAML and JSON; <> is the name, ~ a line's end.
_CALLED: Final = (
    "m:~  _target_: <>~", "m:~  _target_:~    # c~    <>~", "m: {_target_: <>}~", "m: {'_target_': \"<>\"}~",
    '{"m": {"_target_": "<>"}}', '[{"_target_": "<>", "a": [1]}]', "- _target_: >-~    <>~", "? _target_~: <>~",
    "a: &t <>~m:~  _target_: *t~", "k: &k _target_~m:~  *k : <>~", "x: !new:<> [a]~", "x: !apply:<> [a]~",
    "x: !name:<>~", "x: &a !new:<>~  a: 1~", "%TAG !z! !apply:~---~x: !z!<> [a]~", "x: !<!apply:<>> [a]~",
    "%TAG !z! !a~---~x: !z!pply:<> [a]~", "a: 1~---~_target_: <>~", "a: &b {_target_: <>}~c: {<<: *b}~",
    'm:~  "_tar\\~    get_": <>~', "m: !!map {!!str _target_: !!str <>}~", "? {_target_: <>}~: 1~",
)  # fmt: skip
_HARMFUL: Final = ("os.system", "subprocess.Popen", "builtins.eval", "posix.system", "subprocess.run")
_PREFIXES: Final = ("", "", "transformers.utils.hub.", "torch.serialization.", "nemo.core.classes.",
                    "torch.nn.modules.",
                    "speechbrain.utils.", "random._", "diffusers.utils.import_utils.")  # fmt: skip
_BREAKS: Final = ("\n", "\n", "\n", "\r\n", "\r", "\x85", "\u2028", "\u2029")
_ANY_NAMES: Final = (*_YAML_NAMES, "config", "model.cfg", "notes.txt", "a.conf", "README.md", "odd.json", "x")
_ODD: Final = ("!", "%", ":", "\n", " ", "#", "&a ", "*a", "|", "'", '"', "{", "]", "\\", "\ufeff", "\x85", "\u2028",
               "<", ">", "\r", "\t", "- ", "? ", "---\n", "\\x5f", "!!str ", ", ")  # fmt: skip


def yamls(rng: random.Random) -> Iterator[Made]:
    while True:
        text = _yaml(rng) if rng.random() < 0.5 else _called(rng)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(_ODD) + text[at + rng.randint(0, 1) :]
        codec = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"))
        mark = {"utf-16-be": b"\xfe\xff", "utf-16-le": b"\xff\xfe"}.get(codec, b"")
        yield mark + text.encode(codec, "replace"), rng.choice(_ANY_NAMES)


def _called(rng: random.Random) -> str:
    """A text by which a loader of configs calls a name."""
    name = rng.choice(_PREFIXES) + rng.choice(_HARMFUL)
    line = rng.choice(_BREAKS)
    return rng.choice(_CALLED).replace("<>", name).replace("~", line)


def _yaml(rng: random.Random) -> str:
    tag, head = rng.choice(_TAGS), ""
    spelled = _percent(rng, tag) if rng.random() < 0.4 else tag
    way = rng.random()
    if way < 0.5:
        spelled = "!!" + spelled
    elif way < 0.7:
        spelled = "!<tag:yaml.org,2002:" + (spelled if rng.random() < 0.5 else _percent(rng, spelled)) + ">"
    elif way < 0.8:
        head = rng.choice(("%TAG !p! tag:yaml.org,2002:python/\n--- ", "%TAG\t!p! tag:yaml.org,2002:python/\n---\n",
                           "%YAML 1.1\n%TAG !p! tag:yaml.org,2002:python/\n--- ",
                           "%TAG !p! tag:yaml.org,2002:%70ython/\n--- "))  # fmt: skip
        spelled = "!p!" + spelled.removeprefix("python/")
    elif way < 0.9:
        head = rng.choice(("%TAG ! tag:yaml.org,2002:\n--- ", "%TAG !! tag:yaml.org,2002:python/\n--- "))
        spelled = ("!" if head.startswith("%TAG ! ") else "!!") + spelled.removeprefix(
            "python/" if "!!" in head else ""
        )
    else:
        head, spelled = "a: 1\n---\n", "!!" + spelled
    body = rng.choice((" ['true']", " [true]", " {args: [x]}", "\n  - x", " ''", " x", "", "\n", "  # c\n  [x]"))
    place = rng.choice(
        (
            "{}",
            "a: {}",
            "- {}",
            "[{}]",
            "{{a: {}}}",
            "? {}\n: 1",
            "a: &x {}",
            "a: |\n  x\nb: {}",
            "a:\n  - b: {}",
            "a: 'x'\nb: {}",
            "&x {}",
            "a: {} # c",
            "# c\na: {}",
            '"k": {}',
            "? a\n: {}",
            "{}: 1",
        )
    )
    return head + place.format(spelled + body) + "\n"


def _percent(rng: random.Random, text: str) -> str:
    return "".join(f"%{ord(c):02{rng.choice('xX')}}" if rng.random() < 0.2 else c for c in text)
