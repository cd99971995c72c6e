"""What happened: the first cause in the logs of a life (first.py), where its ranks hang (stacks.py, nccl.py)."""
