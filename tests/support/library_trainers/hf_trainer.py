"""transformers' Trainer with a tiny GPT-2 on data that torch generates."""

import os

import torch
from opsctl_contract import newest_checkpoint, transformers_callback
from pace import STEPS, record_step
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Pace(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        record_step(state.global_step)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        tokens = torch.full((8,), index % 16)
        return {"input_ids": tokens, "labels": tokens}


torch.set_num_threads(1)
directory = os.environ.get("TRAIN_CHECKPOINT_DIR", "out")
arguments = TrainingArguments(
    output_dir=directory,
    max_steps=STEPS,
    per_device_train_batch_size=1,
    save_steps=20,
    save_total_limit=2,
    logging_steps=10,
    disable_tqdm=True,
    report_to="none",
    use_cpu=True,
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Pace(), transformers_callback()])
trainer.train(resume_from_checkpoint=newest_checkpoint(directory))
