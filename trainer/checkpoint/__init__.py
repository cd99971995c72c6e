"""Checkpoints, as the ranks together write and read them, and as one process works on them afterwards.

While training: saving (all ranks agree that one is complete), files (what is written, hashed), snapshot (the copy that
is written in the background), space (is there enough), resuming.
`python -m opsctl.trainer.checkpoint`: rewrite (shrink, bf16), universal (another topology), weights and export
(transformers).
What a checkpoint is on disk, and what of that needs no torch, is in trainer/manifest.py.
"""
