"""Image and video models: their names in single files and in diffusers folders."""
