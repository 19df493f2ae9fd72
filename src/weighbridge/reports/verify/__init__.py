"""Everything that is wrong with a file or a model."""
