"""PyTorch checkpoints of every age: zip, legacy, tar and bare pickles."""
