"""Chat templates rendered with Jinja2, in a process of their own."""
