"""The words that [rollback] adds to a command."""

import pytest
from pydantic import ValidationError

from opsctl.settings.rollback import RollbackSettings
from tests.support.cases import read_cases


def test_words_get_values_without_splitting_them() -> None:
    settings = RollbackSettings(
        step_argument="--load '{checkpoint}' --at={step}",
        skip_samples_argument="--skip {first}:{last}",
        lr_scale_argument="scale={scale}",
        step=7,
        checkpoint="/a b/iter_7",
        skip_samples=("1-2", "5-9"),
        lr_scale=0.25,
    )
    assert settings.first_words() == ["--load", "/a b/iter_7", "--at=7"]
    assert settings.lasting_words() == ["--skip", "1:2", "--skip", "5:9", "scale=0.25"]
    assert settings.step_values()["name"] == "iter_7"


def test_no_rollback_adds_no_words() -> None:
    settings = RollbackSettings(step_argument="--load {step}", lr_scale_argument="--lr {scale}")
    assert (settings.first_words(), settings.lasting_words()) == ([], [])


@pytest.mark.parametrize(*read_cases(__file__, "wrong_settings_are_refused"))
def test_wrong_settings_are_refused(fields) -> None:
    with pytest.raises(ValidationError):
        RollbackSettings(**fields)
