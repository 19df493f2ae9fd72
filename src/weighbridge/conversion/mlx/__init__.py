"""MLX folders."""
