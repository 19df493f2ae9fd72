"""The losses of a plan: found before anything is written, and listed in the plan."""
