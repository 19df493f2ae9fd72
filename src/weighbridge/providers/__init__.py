"""The weight provider, from which an inference engine or a trainer takes its weights in any file format.

base.py           `Provider`: abstract; everything an engine calls, derived from three methods
config.py         `ModelConfig`: the fields of a model, equal for GGUF, Hugging Face and MLX
dtypes.py         names and numeric codes of weight types
quantization.py   bits, group size and mode, from a tensor, the config or shapes
fusion.py         several weights as one
layouts.py        one contiguous block in the layout of an engine
cache.py          an LRU cache of arrays and buffers
files.py          the provider over every file format of this package
arrays.py         the provider over arrays in memory
registry.py       `open_provider`, and providers of other packages
"""
