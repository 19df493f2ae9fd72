"""The operators of a layer and how they are connected, drawn from the family tables."""
