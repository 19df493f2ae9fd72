"""Packings: conversion between several stored tensors and one logical tensor.

schema/      the form of packed weights in a file, and how they are recognised; free of numpy
read/        packed weights as tensors that can be read, moved and decoded
write/       logical tensors as the stored ones of a scheme
canonical    the matrices between schemes
unpacking    the stored tensors of a model as logical ones
"""
