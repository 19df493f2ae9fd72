"""Packs files of weights without loss, and unpacks them (docs/wbpack.md)."""
