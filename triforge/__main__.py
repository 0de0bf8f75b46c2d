"""The command line as `python -m triforge`."""

from triforge.cli import main

main()
