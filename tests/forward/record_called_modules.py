"""Records in which order transformers' classes call their modules, and which reads the output of which:
`python -m tests.forward.record_called_modules [NAME ...]`.

Of one recorded model of each family whose graph is declared and not computed, as far as transformers has its class
(golden/called.json): the modules with weights in the order of their calls, each with the module whose output it was
given, or null where that is no module's output as it is.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.models.family_judges import golden

GOLDEN = Path(__file__).parent / "golden" / "called.json"


def called(config: dict[str, Any]) -> list[list[str | None]]:
    """[module, the module whose output it reads] of a model of this config, in the order of the first calls."""
    import torch
    import transformers

    cls = getattr(transformers, config["architectures"][0])
    torch.manual_seed(0)
    model = cls(cls.config_class(**config)).eval()
    order: dict[str, str | None] = {}
    kept: list[Any] = []
    made: dict[int, str] = {}

    def before(name: str) -> Any:
        def hook(_: Any, given: tuple[Any, ...]) -> None:
            order.setdefault(name, made.get(id(given[0])) if given else None)

        return hook

    def after(name: str) -> Any:
        def hook(_: Any, __: Any, result: Any) -> None:
            kept.append(result)  # so that no other tensor gets its id
            made[id(result)] = name

        return hook

    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(before(name))
            module.register_forward_hook(after(name))
    ids = torch.arange(5, 10)[None]
    extra = {"decoder_input_ids": ids} if getattr(model.config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        model(input_ids=ids, **extra)
    return [[name, source] for name, source in order.items() if re.search(r"\.\d+\.", name)]


def main(names: list[str]) -> None:
    from tests.forward.test_operators import family_of

    from weighbridge.forward.operators.flow import flows

    out = json.loads(GOLDEN.read_text("utf-8")) if names else {}
    families = {family_of(model).name for model in out}
    for model in names or golden():
        family = family_of(model).name
        if not names and (family not in flows().family or family in families):
            continue
        config = {key: value for key, value in golden()[model]["config"].items() if key != "time_step_limit"}
        try:
            out[model] = called(config)
            families.add(family)  # nomic-bert: its modules have other names in memory than in files, so it isn't kept
        except Exception as error:  # a class that transformers lacks, or that doesn't run alone
            print(model, type(error).__name__, str(error)[:100], file=sys.stderr)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(out[name], separators=(',', ':'))}" for name in sorted(out))
    GOLDEN.write_text("{\n" + lines + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
