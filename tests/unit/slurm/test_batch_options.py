"""Options in [slurm] extra, read by the rules of sbatch's getopt_long."""

import pytest

from opsctl.slurm.batch_options import list_options
from tests.support.cases import read_cases
from tests.unit.preflight.test_slurm_checks import judge


@pytest.mark.parametrize(*read_cases(__file__, "abbreviation_of_an_owned_option_is_refused"))
def test_abbreviation_of_an_owned_option_is_refused(option, name):
    (text,) = judge(extra=[option])
    assert text.startswith("[slurm] extra: ")
    assert text.endswith(f" is short for --{name}, which opsctl sets itself")


@pytest.mark.parametrize(*read_cases(__file__, "other_option_is_accepted"))
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
