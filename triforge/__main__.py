"""`python -m triforge` is the command line."""

from triforge.cli import main

main()
