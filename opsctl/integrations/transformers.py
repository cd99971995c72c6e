"""TransformersCallback for transformers' Trainer and for every trainer of TRL."""

from transformers import TrainerCallback

from opsctl.integrations.opsctl_contract import TransformersHooks, newest_checkpoint

__all__ = ["TransformersCallback", "newest_checkpoint"]


class TransformersCallback(TransformersHooks, TrainerCallback):
    """`Trainer(callbacks=[TransformersCallback()])`: stops, saves and reports for opsctl."""
