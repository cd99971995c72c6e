"""What makes a trainer refuse to start, told in one sentence."""

from __future__ import annotations


class Refused(Exception):
    """The config, the data or a checkpoint cannot be trained with. The same on every rank; exit code 2."""
