"""Operations on a model: other names, fewer layers, fewer experts. A checkpoint goes in, a checkpoint comes out whose
tensors, config and keys are true to each other, and any conversion writes it."""
