"""Ollama: what a model consists of there, its store, a registry that it is pulled from, and Go templates."""
