"""The recipe, read from a train's settings or from the flags of another trainer."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.calc.accelerators import gpu_kind
from opsctl.launch.launch_plan import job_spec
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, ProblemSeverity, judge
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, load_train, parse
from opsctl.slurm.batch_options import read_directives
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.model_size import model_parameters
from opsctl.trainer.rank_layout import check_layout
from tests.support.broken_trains import ROOT, Case
from tests.support.cases import read_cases, read_table

NO_FACTS = Facts(now=datetime(2026, 1, 1, tzinfo=UTC), user="me")
LAYOUT = ("processes", "heads", "vocabulary", "stages", "batch", "ramp")


def order(trainer, *, nodes, ranks):
    table = {"nodes": nodes, "processes_per_node": ranks, "time_limit": "60"}
    train = parse(TrainSettings, {"name": "t", "trainer": trainer, "slurm": table}, "t.toml")
    return LaunchRequest(train=train, spec=job_spec(train, SiteSettings(root="/t")), recipe=read_recipe(train))


@st.composite
def trainers(draw):
    """Draw [trainer] tables with valid and invalid layouts."""
    heads, batch = draw(st.sampled_from([2, 4, 6, 12])), draw(st.integers(1, 64))
    start = batch % 4 or 4
    ramp = {"rampup": [start, 4, 1000]} if draw(st.booleans()) and start < batch else {}
    return {
        "steps": 10,
        "model": {
            "layers": draw(st.integers(1, 12)),
            "heads": heads,
            "hidden": 48 * heads,
            "vocabulary": draw(st.integers(250, 270)),
        },
        "parallel": {
            "tensor": draw(st.sampled_from([1, 2, 3, 4])),
            "pipeline": draw(st.integers(1, 8)),
            "balance": draw(st.sampled_from(["blocks", "blocks-and-embeddings"])),
        },
        "batch": {"micro_batch": draw(st.sampled_from([1, 2, 3])), "global_batch": batch, **ramp},
    }


@settings(max_examples=200, deadline=None)
@given(table=trainers(), nodes=st.integers(1, 12), ranks=st.sampled_from([1, 2, 4, 8]))
def test_preflight_and_trainer_refuse_the_same_layouts(table, nodes, ranks):
    wrong = check_layout(TrainerConfig.model_validate(table), nodes * ranks)
    checks = [CHECKS[name] for name in LAYOUT]
    problems = [
        problem
        for problem in judge(checks, order(table, nodes=nodes, ranks=ranks), NO_FACTS)
        if problem.severity is ProblemSeverity.ERROR
    ]
    assert bool(problems) == bool(wrong), (problems, wrong)


def test_flags_are_read_in_every_spelling():
    command = ["bash", "-c", "python train.py --micro_batch_size=4 --rampup-batch-size 16 16 1000 --bf16 # --fp16 "]
    table = {"name": "t", "command": command, "slurm": {"nodes": 1, "time_limit": "60"}}
    flags = read_recipe(parse(TrainSettings, table, "t.toml")).flags
    assert flags == {"micro-batch-size": ("4",), "rampup-batch-size": ("16", "16", "1000"), "bf16": ()}


@pytest.mark.parametrize("lines", ["--nodes=40  # comment", "--nodes 40", "-N 40", "-N40", "--nodes='40'", "-sHN 40"])
def test_script_directives_are_read(lines):
    text = f"#!/bin/bash\n# ours\n\n#SBATCH {lines}\n#SBATCH -t 20:00:00\necho\n#SBATCH --nodes=3\n"
    directives = read_directives(text)
    assert (directives["nodes"], directives["time"]) == ("40", "20:00:00")


def test_bloom_command_gives_its_recipe():
    recipe = read_recipe(load_train(ROOT / "examples" / "megatron-deepspeed.toml"))
    assert (recipe.tensor, recipe.pipeline, recipe.replicas(384)) == (4, 12, 8)
    assert (recipe.layers, recipe.hidden, recipe.heads, recipe.embedding_slots) == (70, 14336, 112, True)
    assert (recipe.precision, recipe.zero, recipe.recompute) == ("bf16-optimizer", 1, "full")
    assert recipe.steps == 220_000_000 // 2048


def test_parameters_are_those_that_the_trainer_counts():
    model = {"family": "llama", "hidden": 512, "heads": 8, "kv_heads": 4, "head_width": 128, "qk_norm": True}
    request = order({"steps": 1, "model": model}, nodes=1, ranks=1)
    assert request.recipe.parameters() == model_parameters(request.recipe.embedded.model)


def test_blend_is_read_without_its_weights():
    blend = {"of": "megatron-deepspeed", "finds": [], "flags": {"--data-path": "0.3 /d/en 0.7 /d/fr {{more}}"}}
    assert Case(name="blend", table=blend).make_request().recipe.corpora == ("/d/en", "/d/fr")


def test_mixture_of_experts_has_its_shape():
    case = {"of": "megatron-deepspeed", "finds": [], "flags": {"--num-experts": "8", "--moe-router-topk": "1"}}
    shape = Case(name="experts", table=case).make_request().recipe.shape()
    assert (shape.experts, shape.active_experts, shape.layers) == (8, 1, 70)


@pytest.mark.parametrize(*read_cases(__file__, "gpu_kind_is_read_from_names"))
def test_gpu_kind_is_read_from_names(names, kind):
    assert gpu_kind(names) == kind


FLAGS = read_table(__file__, "flags")
WORDS = st.one_of(
    st.sampled_from(["1", "2", "4", "8", "16", "96", "2048"]),
    st.integers(-1, 10_000).map(str),
    st.sampled_from(["", "x", "1e9", "0", "{{ nodes }}", "/x y", "²", "_", "9" * 40]),
)


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional={flag: st.lists(WORDS, min_size=1, max_size=3) for flag in FLAGS}))
def test_no_command_raises(flags):
    """Another trainer may use any flags, with another meaning."""
    command = [word for flag, values in flags.items() for word in (flag, *values)]
    case = Case(name="any", table={"of": "megatron-deepspeed", "set": {"command": ["train", *command]}})
    problems = case.find_problems()
    assert [problem for problem in problems if not (problem.what and problem.check and problem.source)] == []


@pytest.mark.parametrize("cuts", [False, True])
def test_embedded_trainer_cuts_the_sequence_only_if_set(cuts):
    table = {"steps": 1, "parallel": {"tensor": 2, "sequence_parallel": cuts}}
    assert order(table, nodes=1, ranks=2).recipe.topology(2).norm_split == 1 + cuts


@pytest.mark.parametrize("every", [0, 10])
def test_corpora_of_evaluation_sets_are_read(every):
    sets = [{"name": "wiki", "prefix": "data/wiki"}, {"name": "web", "prefix": "data/web"}]
    trainer = {"steps": 10, "data": {"prefix": "data/web"}, "evaluation": {"every": every, "sets": sets}}
    recipe = order(trainer, nodes=1, ranks=1).recipe
    assert recipe.corpora == (("data/web", "data/wiki") if every else ("data/web",))
