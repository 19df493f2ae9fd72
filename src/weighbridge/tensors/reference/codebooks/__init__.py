"""The types over codebooks, IQ1 to IQ4: points, decoders, encoders."""
