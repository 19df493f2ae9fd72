"""Several models of a page: their family tree, and what two of them have in common."""
