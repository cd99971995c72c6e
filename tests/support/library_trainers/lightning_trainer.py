"""Lightning's Trainer with one linear layer."""

import os

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from opsctl_contract import lightning_callback, newest_checkpoint
from pace import STEPS, record_step


class Pace(Callback):
    """Stands before opsctl's callback, which ends the process within the same hook."""

    def on_train_batch_end(self, trainer, *_):
        record_step(trainer.global_step)


class Linear(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.set_num_threads(1)
directory = os.environ.get("TRAIN_CHECKPOINT_DIR", "out")
world = int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=world,
    strategy="ddp" if world > 1 else "auto",
    max_steps=STEPS,
    max_epochs=-1,
    callbacks=[ModelCheckpoint(dirpath=directory, every_n_train_steps=20, save_top_k=1), Pace(), lightning_callback()],
    default_root_dir=directory,
    logger=False,
    enable_progress_bar=False,
)
batches = torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=2)
trainer.fit(Linear(), batches, batches, ckpt_path=newest_checkpoint(directory))
