"""One module for each command: `add_parser(subparsers)` and `run(args) -> exit code`.

A module is found by its file name and imported only when its command is asked for; it imports heavy
modules inside `run`.
"""
