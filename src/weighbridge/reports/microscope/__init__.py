"""Decodes single blocks of weights field by field, down to the bits of each code."""
