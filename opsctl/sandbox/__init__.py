"""A private, real Slurm: N slurmds and a slurmctld of its own on this machine, without root and without services."""
