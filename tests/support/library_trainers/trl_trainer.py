"""TRL's SFTTrainer with a tiny GPT-2."""

import os

import torch
from datasets import Dataset
from opsctl_contract import newest_checkpoint, transformers_callback
from pace import STEPS, record_step
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Pace(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        record_step(state.global_step)


torch.set_num_threads(1)
directory = os.environ.get("TRAIN_CHECKPOINT_DIR", "out")
words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", eos_token="b")
trainer = SFTTrainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
    args=SFTConfig(
        output_dir=directory,
        max_steps=STEPS,
        per_device_train_batch_size=1,
        save_steps=20,
        save_total_limit=2,
        logging_steps=10,
        max_length=8,
        dataset_kwargs={"skip_prepare_dataset": True},
        disable_tqdm=True,
        report_to="none",
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=Dataset.from_dict({"input_ids": [[2, 3, 2, 3]] * 64, "labels": [[2, 3, 2, 3]] * 64}),
    processing_class=tokenizer,
    callbacks=[Pace(), transformers_callback()],
)
trainer.train(resume_from_checkpoint=newest_checkpoint(directory))
