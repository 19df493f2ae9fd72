"""Rules of one projector, named after it. See the package above."""
