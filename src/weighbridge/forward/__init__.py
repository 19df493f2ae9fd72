"""Runs decoders in numpy, one layer at a time, to see the inputs of their matrices (`wb imatrix`)."""
