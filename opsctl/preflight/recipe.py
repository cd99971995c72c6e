"""The recipe of a training: model, layout and batches, from [trainer] or from the flags of another trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from opsctl.calc.gpt_size import ModelShape, parameters
from opsctl.calc.parallel_layout import Topology
from opsctl.errors import InputError
from opsctl.preflight.command_flags import number, parse_flags, parse_whole
from opsctl.settings.loader import TrainSettings
from opsctl.trainer.config import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a training. None means not set."""

    embedded: TrainerConfig | None = None
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flags of the command; empty for the embedded trainer."""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    sequence: int | None = None
    vocabulary: int | None = None
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    """Ranks that share one sequence (Megatron's context parallelism)."""
    micro_batch: int | None = None
    global_batch: int | None = None
    rampup: tuple[int, int, int] | None = None
    """Start, increment, samples."""
    zero: int = 0
    precision: str = "bf16"
    recompute: bool = False
    steps: int | None = None
    save_every: int | None = None
    """Steps between saves; 0 means never."""
    evaluate_every: int | None = None
    evaluate_batches: int | None = None
    keep_last: int = 0
    keep_every: int = 0
    embedding_slots: bool = False
    """Whether embedding and output count as one layer each in the layout."""
    corpora: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()
    """Tokenizer files."""

    @property
    def is_embedded(self) -> bool:
        return self.embedded is not None

    @property
    def model_ranks(self) -> int:
        return self.tensor * self.pipeline * self.context

    def replicas(self, world: int) -> int:
        return max(1, world // self.model_ranks)

    def sizes(self) -> list[int]:
        """Return every global batch of the ramp, the full batch last; empty if the batch is unknown."""
        if self.global_batch is None:
            return []
        start, increment, _ = self.rampup or (self.global_batch, 1, 0)
        return [*range(start, self.global_batch, max(1, increment)), self.global_batch]

    def shape(self) -> ModelShape | None:
        """Return the shape of the model; None if too little is known. An unknown vocabulary counts as 1 row."""
        if not (self.layers and self.hidden and self.heads) or "num-experts" in self.flags:
            return None
        bloom = self.embedded is not None and self.embedded.model.family == "bloom"
        try:
            return ModelShape(
                layers=self.layers,
                hidden=self.hidden,
                heads=self.heads,
                vocabulary=self.vocabulary or 1,
                sequence=self.sequence or 2048,
                positions=not bloom,
                embedding_norm=bloom,
            )
        except InputError:
            return None

    def parameters(self) -> int | None:
        shape = self.shape()
        return parameters(shape) if shape else None

    def topology(self, world: int) -> Topology:
        return Topology(
            tp=self.tensor,
            pp=self.pipeline,
            dp=self.replicas(world),
            micro_batch=self.micro_batch or 1,
            zero=self.zero,
            precision=self.precision,
            embedding_slots=self.embedding_slots,
            recompute="full" if self.recompute else "none",
        )

    def name(self, setting: str) -> str:
        """Return the name that users know: `[trainer.batch] global_batch`, or `--global-batch-size`."""
        embedded_name, megatron_name = NAMES[setting]
        return embedded_name if self.is_embedded else megatron_name


NAMES = {
    "global_batch": ("[trainer.batch] global_batch", "--global-batch-size"),
    "micro_batch": ("[trainer.batch] micro_batch", "--micro-batch-size"),
    "rampup": ("[trainer.batch] rampup", "--rampup-batch-size"),
    "tensor": ("[trainer.parallel] tensor", "--tensor-model-parallel-size"),
    "pipeline": ("[trainer.parallel] pipeline", "--pipeline-model-parallel-size"),
    "heads": ("[trainer.model] heads", "--num-attention-heads"),
    "hidden": ("[trainer.model] hidden", "--hidden-size"),
    "layers": ("[trainer.model] layers", "--num-layers"),
    "vocabulary": ("[trainer.model] vocabulary", "--vocab-size"),
    "save_every": ("[trainer.checkpoint] every", "--save-interval"),
    "evaluate_batches": ("[trainer.evaluation] batches", "--eval-iters"),
    "data": ("[trainer.data] prefix", "--data-path"),
}
"""By setting: the names of the embedded trainer and of Megatron."""


def read_recipe(train: TrainSettings) -> Recipe:
    """Read the recipe of `train`. For a trainer with unknown flags, nearly nothing is set."""
    if train.trainer is not None:
        return _read_trainer_table(TrainerConfig.model_validate_json(json.dumps(train.trainer)))
    return _read_megatron_flags(parse_flags(train.command))


def _read_trainer_table(config: TrainerConfig) -> Recipe:
    model, parallel, batch, saving = config.model, config.parallel, config.batch, config.checkpoint
    ramp = batch.rampup
    return Recipe(
        embedded=config,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        sequence=model.sequence,
        vocabulary=model.vocabulary,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        micro_batch=batch.micro_batch,
        global_batch=batch.global_batch,
        rampup=(ramp[0], ramp[1], ramp[2]) if ramp else None,
        zero=parallel.zero_stage,
        precision="fp32" if config.precision == "fp32" else "bf16-optimizer",
        recompute=config.recompute,
        evaluate_every=config.evaluation.every,
        evaluate_batches=config.evaluation.batches,
        steps=config.steps,
        save_every=saving.every,
        keep_last=saving.keep_last,
        keep_every=saving.keep_every,
        embedding_slots=parallel.balance == "blocks-and-embeddings",
        corpora=tuple(corpus_config.prefix for corpus_config in config.data.corpora()),
    )


def _read_megatron_flags(flags: Mapping[str, tuple[str, ...]]) -> Recipe:
    ramp = [size for word in flags.get("rampup-batch-size", ())[:3] if (size := parse_whole(word)) is not None]
    batch, samples = number(flags, "global-batch-size"), number(flags, "train-samples")
    slots = flags.get("pp-partition-method", ("",))[:1] == ("type:transformer|embedding",)
    deepspeed = "deepspeed" in flags
    return Recipe(
        flags=flags,
        layers=number(flags, "num-layers"),
        hidden=number(flags, "hidden-size"),
        heads=number(flags, "num-attention-heads"),
        sequence=number(flags, "seq-length"),
        vocabulary=number(flags, "padded-vocab-size", "vocab-size"),
        tensor=number(flags, "tensor-model-parallel-size", "tp-size") or 1,
        pipeline=number(flags, "pipeline-model-parallel-size", "pp-size") or 1,
        context=number(flags, "context-parallel-size") or 1,
        micro_batch=number(flags, "micro-batch-size"),
        global_batch=batch,
        rampup=(ramp[0], ramp[1], ramp[2]) if len(ramp) == 3 else None,
        zero=1 if "use-distributed-optimizer" in flags else number(flags, "zero-stage") or int(deepspeed),
        precision=_precision(flags),
        recompute=bool(flags.keys() & RECOMPUTES),
        steps=number(flags, "train-iters") or (samples // batch if samples and batch else None),
        save_every=number(flags, "save-interval"),
        evaluate_every=number(flags, "eval-interval"),
        evaluate_batches=number(flags, "eval-iters"),
        embedding_slots=slots,
        corpora=tuple(_prefixes(flags.get("data-path", ()))),
        tokenizers=tuple(
            value[0] for name in TOKENIZERS if (value := flags.get(name)) and value[0].startswith(("/", "./", "../"))
        ),
    )


def _precision(flags: Mapping[str, tuple[str, ...]]) -> str:
    if "fp16" in flags:
        return "fp16"
    return "bf16-optimizer" if "bf16" in flags and "deepspeed" in flags else "bf16"


RECOMPUTES = frozenset(
    {
        "checkpoint-activations",
        "deepspeed-activation-checkpointing",
        "recompute-granularity",
        "recompute-activations",
        "activations-checkpoint-method",
    }
)
TOKENIZERS = ("tokenizer-name-or-path", "tokenizer-model", "vocab-file", "merge-file")


def _prefixes(words: tuple[str, ...]) -> list[str]:
    """Return the prefixes of `--data-path`, which takes one prefix, or weights and prefixes in turn."""
    return [word for word in words if not _is_weight(word) and "{{" not in word and "$" not in word]


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
