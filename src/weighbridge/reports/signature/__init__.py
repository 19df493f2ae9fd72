"""Signatures of models by OpenSSF Model Signing 1.0."""
