"""A model's tokens, and its chat template rendered on example conversations."""
