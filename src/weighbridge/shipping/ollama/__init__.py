"""Ollama: the contents of a model, the store, a registry for `ollama pull`, and Go templates."""
