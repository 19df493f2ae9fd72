"""Packings: how several stored tensors make one logical one, and back.

schema/      what a packed weight is in a file, and how it is recognised; free of numpy
read/        packed weights as tensors that can be read, moved and decoded
write/       logical tensors as the stored ones of a scheme
canonical    the matrices between schemes
unpacking    the stored tensors of a model as logical ones
"""
