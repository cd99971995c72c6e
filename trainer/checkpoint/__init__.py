"""Checkpoints: saved and resumed by all ranks together, and processed afterwards by one process.

While training: save (all ranks agree that a checkpoint is complete; free space; removal of old checkpoints),
rank_files (files, their hashes, and the copy that a background save writes), resume.
`python -m opsctl.trainer.checkpoint`: rewrite (another topology), export and transformers_* (transformers).
trainer/manifest.py defines a checkpoint on disk, and holds the functions that need no torch.
"""
