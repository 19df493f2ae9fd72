"""Operations on a model: rename tensors, remove layers, remove experts. Each takes an open model and returns one with
consistent tensors, config and metadata, which any conversion can write."""
