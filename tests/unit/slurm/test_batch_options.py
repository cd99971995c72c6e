"""Options in [slurm] extra, read by the rules of sbatch's getopt_long."""

import pytest

from opsctl.slurm.batch_options import list_options
from tests.unit.preflight.test_slurm_checks import judge


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--comm=x", "comment"),
        ("--arr=1-3", "array"),
        ("--arr 1-3", "array"),
        ("--hint=nomultithread -a1-3", "array"),
        ("--hint=nomultithread -Ha 1-3", "array"),
        ("--exclusive -N2", "nodes"),
        ("--hint=nomultithread --outp=x", "output"),
        ("--tasks-per-node=2", "ntasks-per-node"),
        ("--req", "requeue"),
        ("--node=3", "nodes"),
        ("--hint nomultithread -J other", "job-name"),
    ],
)
def test_abbreviation_of_an_owned_option_is_refused(option, name):
    (text,) = judge(extra=[option])
    assert text.startswith("[slurm] extra: ")
    assert text.endswith(f" is short for --{name}, which opsctl sets itself")


@pytest.mark.parametrize(
    "option",
    [
        "--gres=gpu:a100:8",
        "--hint=nomultithread",
        "--mail-user=a@b.org --mail-type END",
        "--container-image=ubuntu",
        "--distribution=block:block # --array=1-3",
        "--mem 0",
        "--export=ALL,ARRAY=--array",
        "--switches=1@24:00:00",
        "--comment-of-a-plugin=x",
    ],
)
def test_other_option_is_accepted(option):
    assert judge(extra=[option]) == []


def test_stray_word_is_refused():
    assert judge(extra=["--hint=nomultithread word"]) == [
        "[slurm] extra: 'word' is not an option, so sbatch refuses the script"
    ]


def test_value_of_an_option_is_no_option():
    assert [option.text for option in list_options("--hint nomultithread --mem=5G -p -a -t 3")] == [
        "--hint",
        "--mem",
        "-p",
        "-t",
    ]
