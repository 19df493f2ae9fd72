"""What a page, a notebook or a terminal shows of a model, as plain data."""
