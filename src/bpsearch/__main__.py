"""`python -m bpsearch`: the command."""

from bpsearch.cli import main

main()
