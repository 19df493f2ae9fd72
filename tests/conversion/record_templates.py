"""Record what mergekit's chat templates render, for tests/conversion/test_merging_tokenizers.py.

python tests/conversion/record_templates.py     # in an environment with mergekit; writes golden/merging_templates.json
"""

from __future__ import annotations

import importlib.resources
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

TALKS: dict[str, list[dict[str, str]]] = {
    "one": [{"role": "user", "content": "Hi"}],
    "turns": [{"role": "user", "content": " Hi \n"}, {"role": "assistant", "content": "Ho\n\n"},
              {"role": "user", "content": "<b>'\"{{ x }}"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
               {"role": "assistant", "content": "Ho"}],
    "wrong": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "tool": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}],
    "system late": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
}  # fmt: skip


def rendered(template: str) -> dict[str, str | None]:
    """Returns what a template makes of each conversation, as transformers renders it; None if it refuses it."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> Any:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    result: dict[str, str | None] = {}
    for name, messages in TALKS.items():
        for prompt in (False, True):
            try:
                text = environment.from_string(template).render(
                    messages=messages, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
                )
            except TemplateError:
                text = None
            result[f"{name}/{prompt}"] = text
    return result


def main() -> None:
    folder = importlib.resources.files("mergekit._data.chat_templates")
    names = ("chatml", "llama3", "mistral")
    results = {name: rendered(folder.joinpath(f"{name}.jinja").read_text()) for name in names}
    out = Path(__file__).parent / "golden" / "merging_templates.json"
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
