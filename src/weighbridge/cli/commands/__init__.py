"""One file per command. The rules:

- The module defines one `click.Command` with the name of its row in `cli/main.py`. It is imported only when it runs.
- Its help ends with `epilog=examples(...)`. It has `@json_option` if it has an answer, and prints only through
  `cli/render.py`.
- It returns the exit code as an int (1: a finding, a difference), or None for 0. Trouble is an exception.
- The group adds `-q`, `-v`, `--color`, `--debug` and `-h` to every command.
"""
