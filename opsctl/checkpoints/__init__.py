"""The checkpoints of a train: find, verify, prune, offload."""
