"""Rounds weights by the inputs that a text gives them."""
