"""The recipe of a training: model, layout and batches, from [trainer] or from the flags of another trainer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.calc.gpt_size import ModelShape, parameters
from opsctl.calc.parallel_layout import Topology
from opsctl.preflight.trainer_settings import GivenSettings, collect_settings, read_trainer_settings, read_variables
from opsctl.settings.loader import TrainSettings
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.model_size import model_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One description of a training, whichever trainer runs it. None means not set."""

    embedded: TrainerConfig | None = None
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flags of the command; empty for the embedded trainer."""
    trainer: str = ""
    """The trainer whose settings were recognised; empty if none was."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By field: the setting as the user wrote it."""
    unread: tuple[str, ...] = ()
    """Settings that opsctl does not read."""
    invalid: tuple[str, ...] = ()
    """Configuration files that cannot be read, each with the reason."""
    refuses: frozenset[str] = frozenset()
    """Mistakes with which the trainer itself stops at its start."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """All settings of the command, its scripts and its files by their names with dashes; `ds.` begins DeepSpeed's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, the setup and the scripts."""
    launcher: str = ""
    """The program that starts the ranks, in the command or its scripts."""
    alternatives: frozenset[str] = frozenset()
    """Options of which nobody knows whether they count: those in branches of a script."""
    is_complete: bool = True
    """Whether an option that is not in `options` is certainly not given."""

    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    sequence: int | None = None
    vocabulary: int | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    experts: int | None = None
    active_experts: int | None = None
    expert_ffn: int | None = None

    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    chunks: int | None = None
    """Parts of a stage with an interleaved schedule."""
    chunk_layers: int | None = None
    context: int = 1
    """Ranks that share one sequence (Megatron's context parallelism)."""
    expert: int = 1
    zero: int = 0
    fsdp: str = ""
    shards: int | None = None
    replicates: int | None = None
    nodes: int | None = None
    devices: int | None = None
    """Ranks of a node."""
    uneven: bool = False
    """Whether the stages may have different numbers of layers."""

    micro_batch: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None
    rampup: tuple[int, int, int] | None = None
    """Start, increment, samples."""
    any_batch: bool = False
    """Whether the trainer takes a batch that the replicas do not divide."""

    precision: str = "bf16"
    precisions: Mapping[str, str] = field(default_factory=dict)
    """By setting: the precision that it sets."""
    fp8: bool = False
    recompute: str = "none"
    """none, selective or full."""
    attention: str = ""
    """flash, stored (the attention matrix is kept), or empty if unknown."""
    kernels: str = "fused"
    """fused, or eager: single PyTorch operations."""
    offload: bool = False
    gradients_16: bool = False
    fused_loss: bool = False
    accumulates_whole: bool = False
    """Whether the trainer's FSDP keeps whole gradients between micro batches."""

    steps: int | None = None
    samples: int | None = None
    save: str = ""
    load: str = ""
    saves: bool | None = None
    """Whether checkpoints are switched on, for trainers with such a switch."""
    resumes: bool | None = None
    """Whether the trainer continues from its newest checkpoint without being told which."""
    overwrites: bool = False
    save_every: int | None = None
    """Steps between saves; 0 means never."""
    exit_minutes: int | None = None
    """Minutes after its start at which the trainer saves and exits."""
    deepspeed_file: str = ""
    port: int | None = None
    """The port of the first rank, if it is fixed."""
    endpoint: str = ""
    """The address at which ranks meet: `host:port`, or `tcp://host:port`."""
    limit_minutes: int | None = None
    limit_seconds: int | None = None
    """Time limits of collectives."""
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
        if not (self.layers and self.hidden and self.heads):
            return None
        bloom = self.embedded is not None and self.embedded.model.kind.positions == "alibi"
        gated = bool(self.gated_mlp)  # as in Llama and its kin, which have no biases and no learnt positions
        experts = self.experts or 0
        try:
            return ModelShape(
                layers=self.layers,
                hidden=self.hidden,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_columns=self.head_size,
                ffn=(self.expert_ffn or self.ffn) if self.experts else self.ffn,
                vocabulary=self.vocabulary or 1,
                sequence=self.sequence or 2048,
                gated=gated,
                biases=not gated,
                tied=self.tied_embeddings is not False,
                positions=not (bloom or gated),
                embedding_norm=bloom,
                experts=experts,
                active_experts=(self.active_experts or 2) if experts else 0,
            )
        except InputError:
            return None

    def parameters(self) -> int | None:
        if self.embedded is not None:
            return model_parameters(self.embedded.model)
        shape = self.shape()
        return parameters(shape) if shape else None

    def topology(self, world: int) -> Topology:
        """Return the layout on so many ranks. Raises InputError for one that no trainer has."""
        replicas = self.replicas(world)
        shard = self.shards or (max(1, replicas // self.replicates) if self.replicates else None)
        return Topology(
            tp=self.tensor,
            pp=self.pipeline,
            dp=replicas,
            cp=self.context,
            ep=self.expert,
            chunks=self._count_chunks(),
            micro_batch=self.micro_batch or 1,
            zero=3 if self.fsdp else self.zero,
            shard=shard if self.fsdp else None,
            precision="fp8" if self.fp8 else self.precision,
            embedding_slots=self.embedding_slots,
            recompute="operations" if self.fsdp and self.recompute == "selective" else self.recompute,
            attention="unfused" if self.attention == "stored" else "flash",
            sequence_parallel=self.sequence_parallel,
            kernels=self.kernels,
            gradients_16=self.gradients_16,
            fused_loss=self.fused_loss,
            accumulates_whole=self.accumulates_whole and bool(self.fsdp),
        )

    def _count_chunks(self) -> int:
        if self.pipeline == 1:
            return 1
        layers = (self.layers or 0) // self.pipeline
        return self.chunks or (max(1, layers // self.chunk_layers) if self.chunk_layers else 1)

    def name(self, setting: str) -> str:
        """Return the name that users know: `[trainer.batch] global_batch`, or `--global-batch-size`."""
        known: Mapping[str, Mapping[str, str]] = read_package_table("preflight/setting_names.toml")
        if self.is_embedded:
            return known["own"].get(setting, "")
        usual = {**known["Megatron"], **known.get(self.trainer, {})}
        return self.names.get(setting) or usual.get(setting, setting)


def read_recipe(train: TrainSettings, directory: Path | None = None) -> Recipe:
    """Read the recipe of `train`. Without `directory`, where the trainer starts, scripts and files are not read."""
    if train.trainer is not None:
        recipe = _read_trainer_table(TrainerConfig.model_validate_json(json.dumps(train.trainer)))
        return replace(recipe, variables=read_variables(train))
    given = collect_settings(train, directory)
    return _from_settings(given, read_trainer_settings(given))


def _read_trainer_table(config: TrainerConfig) -> Recipe:
    table, evaluation = read_package_table("preflight/trainers/own.toml"), config.evaluation
    read = {name: attrgetter(place)(config) for name, place in table["read"].items()}
    sets = evaluation.sets if evaluation.every else []
    ramp = config.batch.rampup
    return Recipe(
        embedded=config,
        gated_mlp=config.model.kind.is_gated,
        rampup=(ramp[0], ramp[1], ramp[2]) if ramp else None,
        zero=1,
        precision="fp32" if config.precision == "fp32" else "bf16",
        recompute="full" if config.recompute else "none",
        evaluate_batches=evaluation.batches * max(1, len(evaluation.sets) + bool(config.data.held_out)),
        embedding_slots=config.parallel.balance == "blocks-and-embeddings",
        uneven=config.parallel.blocks is not None,
        corpora=tuple(dict.fromkeys([*config.data.corpora(), *(evaluation_set.prefix for evaluation_set in sets)])),
        **read,
    )


def _from_settings(given: GivenSettings, read: Mapping[str, Any]) -> Recipe:
    fields = {name: value for name, value in read.items() if name in RECIPE_FIELDS}
    for name in ("tensor", "pipeline", "context", "expert"):
        fields[name] = fields.get(name) or 1
    batch, samples = fields.get("global_batch"), fields.get("samples")
    if not fields.get("steps") and samples and batch:
        fields["steps"] = samples // batch
    has_deepspeed = bool(read.get("deepspeed"))
    if has_deepspeed:  # DeepSpeed's optimizer of bf16 shards its state by itself
        fields["zero"] = fields.get("zero") or 1
        fields["attention"] = fields.get("attention") or "stored"  # Megatron-DeepSpeed without --use-flash-attn
        fields["precision"] = "bf16-optimizer" if fields.get("precision") == "bf16" else fields.get("precision", "bf16")
    fields["recompute"] = RECOMPUTATIONS.get(str(fields.get("recompute", "none")), "full")
    tokenizers = [value[0] for name in TOKENIZERS if (value := given.values.get(name))]
    return Recipe(
        flags=given.flags,
        invalid=given.invalid,
        corpora=_prefixes(given.flags.get("data-path", ())) if read["trainer"] in {"Megatron", ""} else (),
        tokenizers=tuple(path for path in tokenizers if path.startswith(("/", "./", "../"))),
        **fields,
    )


RECIPE_FIELDS = frozenset(Recipe.__dataclass_fields__)
RECOMPUTATIONS = dict.fromkeys(("selective", "op", "memory_budget"), "selective")
RECOMPUTATIONS |= dict.fromkeys(("none", "false", "no", "null"), "none")
TOKENIZERS = ("tokenizer-name-or-path", "tokenizer-model", "vocab-file", "merge-file")


def _prefixes(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the prefixes of `--data-path`, which takes one prefix, or weights and prefixes in turn."""
    return tuple(word for word in words if not _is_weight(word) and "{{" not in word and "$" not in word)


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
