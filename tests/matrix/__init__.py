"""`make matrix`: opsctl's tests on every Slurm version of the archive, each in its own minimal root."""
