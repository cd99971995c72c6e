"""LightningCallback for Lightning's Trainer, from the package `lightning` or `pytorch_lightning`."""

from opsctl.integrations.opsctl_contract import lightning_callback, newest_checkpoint

__all__ = ["LightningCallback", "newest_checkpoint"]

LightningCallback = lightning_callback
"""`Trainer(callbacks=[LightningCallback()])`: stops, saves and reports for opsctl."""
