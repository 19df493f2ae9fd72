"""`wb lineage`: where models come from, by their weights."""
