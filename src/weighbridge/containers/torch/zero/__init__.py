"""DeepSpeed's ZeRO checkpoints: their files, their parts, the rules that join these."""
