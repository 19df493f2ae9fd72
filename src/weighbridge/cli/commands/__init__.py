"""One file a command. What each of them keeps to:

- the module defines one `click.Command`, named in the table of `cli/main.py` (`module:attribute`, attribute `command`
  unless the row says otherwise); it is imported only when that command runs;
- it ends its help with `epilog=examples(...)`, takes `@json_option` where it has an answer, and writes through
  `cli/render.py` alone;
- it returns the exit code as an int (1: a finding, a difference), or None for 0; trouble is an exception;
- `-q`, `-v`, `--color`, `--debug` and `-h` are added to every command by the group.
"""
