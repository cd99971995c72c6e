"""`python -m opsctl`, which batch scripts use: it needs no PATH."""

from opsctl.cli import main

main()
