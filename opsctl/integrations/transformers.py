"""TransformersCallback for transformers' Trainer and for every trainer of TRL."""

from opsctl.integrations.opsctl_contract import newest_checkpoint, transformers_callback

__all__ = ["TransformersCallback", "newest_checkpoint"]

TransformersCallback = transformers_callback
"""`Trainer(callbacks=[TransformersCallback()])`: stops, saves and reports for opsctl."""
