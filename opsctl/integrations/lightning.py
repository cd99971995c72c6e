"""LightningCallback for Lightning's Trainer, from the package `lightning` or `pytorch_lightning`."""

from __future__ import annotations

import sys

from opsctl.integrations.opsctl_contract import LightningHooks, newest_checkpoint

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback  # their callbacks are not interchangeable
else:
    from lightning.pytorch import Callback

__all__ = ["LightningCallback", "newest_checkpoint"]


class LightningCallback(LightningHooks, Callback):
    """`Trainer(callbacks=[LightningCallback()])`: stops, saves and reports for opsctl."""
