"""Hundreds of watch cycles over twenty trains on a real Slurm while things break at random, and a count of what people
were told against what they should have been told. `make prove`; a short one is in tests/integration/slurm.
"""
