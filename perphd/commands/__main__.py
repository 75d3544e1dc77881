"""``python -m perphd.commands`` is perphctl."""

from perphd.commands.cli import main

main()
