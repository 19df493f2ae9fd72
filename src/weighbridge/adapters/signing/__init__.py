"""Signatures of models: EC keys and certificates through `cryptography`, keyless ones through `sigstore`."""
