"""One command over many models: a manifest of pure descriptors, work that is a function of a descriptor, a journal in
the target's place, and runners. What runs where is no part of the result."""
