"""Operations on a model: rename tensors, remove layers, remove experts. Each takes a checkpoint and returns one
whose tensors, config and metadata agree, which any conversion can write."""
