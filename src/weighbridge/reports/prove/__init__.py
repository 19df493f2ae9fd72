"""Whether two models are the same: by their settings, their tensors, and what they compute."""
