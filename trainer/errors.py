"""The errors of the trainer."""


class Refused(Exception):
    """The config, the data or a checkpoint is unusable. Every rank raises the same error; the exit code is 2."""
