"""What fits: the memory and speed of a model on a device, by the rules of the runtime that would run it."""
