"""The weight provider: what an inference engine or a trainer takes its weights from, whatever files they lie in.

base.py           `Provider`: abstract; everything an engine calls, derived from three methods
config.py         `ModelConfig`: the fields of a model, equal for GGUF, Hugging Face and MLX
dtypes.py         names and numeric codes of weight types
quantization.py   bits, group size and mode, from a tensor, the config or shapes alone
fusion.py         several weights as one
layouts.py        one contiguous block in the layout of an engine
cache.py          what was read, up to a bound
files.py          the provider over every file format of this package
arrays.py         the provider over arrays in memory
registry.py       `open_provider`, and providers of other packages
"""
