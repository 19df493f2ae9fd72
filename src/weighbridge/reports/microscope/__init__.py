"""From a file down to a nibble: what single bytes, blocks of weights and steps of a pickle mean."""
