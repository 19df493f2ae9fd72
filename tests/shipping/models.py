"""A small Llama with a tokenizer, a chat template, sampling defaults and a licence, as a folder."""

from __future__ import annotations

import json
from pathlib import Path

from tests.llama import CONFIG, llama_tensors, tokenizer, write

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "</s>")
CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LICENCE = "The MIT License\n\nas it is\n"


def write_folder(folder: Path, template: str | None = CHATML) -> Path:
    """The model as Hugging Face has it."""
    folder.mkdir(parents=True)
    made = tokenizer()
    vocab = {name: i for name, i in made["model"]["vocab"].items() if i < 80 - len(SPECIAL)}  # type: ignore[index]
    made["model"]["vocab"] = vocab  # type: ignore[index]
    made["added_tokens"] = [
        {"id": 80 - len(SPECIAL) + i, "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, text in enumerate(SPECIAL)
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_k": 20}))
    (folder / "LICENSE").write_text(LICENCE)
    write(folder / "model.safetensors", llama_tensors())
    return folder
