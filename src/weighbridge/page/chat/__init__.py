"""A model's tokens, and its chat template rendered with example conversations."""
