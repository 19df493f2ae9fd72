"""The drawings and tables of the page, each a function of an open model."""
