"""`make matrix`: opsctl's tests on every Slurm of the archive, each in a minimal root of its own."""
