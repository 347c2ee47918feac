"""``python -m outbox``: the command line where the script is not on the path."""

from outbox.cli import main

main()
