"""opsctl keeps a months-long training run alive on a Slurm cluster."""

__version__ = "0.1.0"
