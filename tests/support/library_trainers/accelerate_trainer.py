"""A training loop with accelerate."""

import os

import opsctl_contract
import torch
from accelerate import Accelerator
from pace import STEPS, record_step

torch.set_num_threads(1)
directory = os.environ.get("TRAIN_CHECKPOINT_DIR", "out")
accelerator = Accelerator(cpu=True)
layer = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
contract = opsctl_contract.Contract()

first = 1
if newest := opsctl_contract.newest_checkpoint(directory):
    accelerator.load_state(newest)
    first = int(newest.rpartition("-")[2]) + 1
for step in range(first, STEPS + 1):
    loss = model(torch.randn(2, 2)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    record_step(step)
    request = contract.after_step(step, last_steps=STEPS, loss=loss.item())
    if request.save or step % 20 == 0:
        with contract.checkpoint(step, directory, keep=2) as path:
            accelerator.save_state(path)
    if request.stop:
        break
contract.end(step)
accelerator.end_training()
