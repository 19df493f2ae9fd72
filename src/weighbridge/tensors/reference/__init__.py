"""The codecs in plain numpy, written to be read."""
