"""``python -m perphd.control`` is perphctl."""

from perphd.control.cli import main

main()
