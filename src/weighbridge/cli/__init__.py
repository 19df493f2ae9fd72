"""The command line: thin. Commands parse arguments, call the library, and hand its answers to `render`."""
