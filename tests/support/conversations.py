"""Conversations, chat templates like those of published models, and a small tokenizer."""

import json
import random
import tomllib
from pathlib import Path

MESSAGES = [
    {"role": "user", "content": "Wie heißt du?"},
    {"role": "assistant", "content": "Opsy. "},
    {"role": "user", "content": "And\nthen?"},
    {"role": "assistant", "content": "  é 🙂"},
]
TEMPLATES: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_LEARNT = {
    "chatml": ["Opsy. <|im_end|>", "  é 🙂<|im_end|>"],
    "llama-3": ["Opsy.<|eot_id|>", "é 🙂<|eot_id|>"],
    "mistral": ["Opsy. </s>", "  é 🙂</s>"],
    "closed": ["Opsy. <end>", "  é 🙂<end>"],
    "generation": ["Opsy. </a>", "  é 🙂</a>"],
}


def find_learnt_text(template: str) -> list[str]:
    """Return what the assistant writes in MESSAGES, by hand."""
    return _LEARNT[template]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Write prompts and completions as JSON Lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b in pairs))


def make_pairs(count: int) -> list[tuple[str, str]]:
    """Return prompts and completions of many lengths, the same at every call."""
    draw = random.Random(7)
    words = Path(__file__).read_text()

    def take(most: int) -> str:
        first = draw.randrange(len(words) - most)
        return words[first : first + draw.randint(1, most)].encode("ascii", "replace").decode()

    return [(take(14), take(9)) for _ in range(count)]


def write_tokenizer(directory: Path, *, trim: bool = False) -> Path:
    """Write a byte-level `tokenizer.json` with some merges and special tokens; return its path."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers  # noqa: PLC0415 - may be absent

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<s>", "</s>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"
