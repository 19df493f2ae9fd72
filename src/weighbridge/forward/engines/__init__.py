"""Engines that run a model over a text."""
