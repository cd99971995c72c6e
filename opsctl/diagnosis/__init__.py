"""What happened: the first cause in the logs of an attempt (first.py), where its ranks hang (stacks.py, nccl.py)."""
