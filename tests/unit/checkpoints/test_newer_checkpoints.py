"""Newer checkpoints are set aside and come back, with everything that names the newest."""

import contextlib
from pathlib import Path

import pytest

from opsctl.checkpoints.newer_checkpoints import (
    bring_back,
    find_copies_of_newest,
    find_newer,
    find_pointer,
    set_aside,
)
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in

ASIDE = ".rolled-back-0001"


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_megatron(place: Path, step: int) -> None:
    write(place / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt")
    write(place / "latest_checkpointed_iteration.txt", str(step))


def make_deepspeed(place: Path, step: int) -> None:
    write(place / f"global_step{step}/mp_rank_00_model_states.pt")
    write(place / "latest", f"global_step{step}\n")


def make_transformers(place: Path, step: int) -> None:
    write(place / f"checkpoint-{step}/trainer_state.json")


def make_nanochat(place: Path, step: int) -> None:
    write(place / f"model_{step:06d}.pt", "PK\x03\x04.....PK\x05\x06")
    write(place / f"meta_{step:06d}.json")
    write(place / f"optim_{step:06d}_rank0.pt", "PK\x03\x04.....PK\x05\x06")


def make_composer(place: Path, step: int) -> None:
    write(place / f"ep0-ba{step}-rank0.pt", "PK\x03\x04.....PK\x05\x06")
    link = place / "latest-rank0.pt"
    link.unlink(missing_ok=True)
    link.symlink_to(f"ep0-ba{step}-rank0.pt")


LAYOUTS = (make_megatron, make_deepspeed, make_transformers, make_nanochat, make_composer)


def snapshot(place: Path) -> dict[str, str]:
    """Return every file and link below a directory, with its text or target."""
    paths = [path for path in sorted(place.rglob("*")) if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(place)): str(path.readlink()) if path.is_symlink() else path.read_text() for path in paths
    }


def choose(place: Path, step: int) -> tuple[list[FoundCheckpoint], FoundCheckpoint]:
    found = list_checkpoints_in([place])
    return found, next(checkpoint for checkpoint in found if checkpoint.step == step)


def roll_back(place: Path, step: int) -> list[Path]:
    found, chosen = choose(place, step)
    return set_aside(find_newer(found, chosen), chosen.path, ASIDE, find_pointer(chosen))


@pytest.mark.parametrize("make", LAYOUTS)
def test_directory_is_as_if_the_step_was_the_last(make, tmp_path: Path) -> None:
    for step in (100, 200, 300):
        make(tmp_path / "trained", step)
        if step <= 200:
            make(tmp_path / "expected", step)
    roll_back(tmp_path / "trained", 200)
    left = {name: text for name, text in snapshot(tmp_path / "trained").items() if ASIDE not in name}
    assert left == snapshot(tmp_path / "expected")
    assert max(checkpoint.step or 0 for checkpoint in list_checkpoints_in([tmp_path / "trained"])) == 200


@pytest.mark.parametrize("make", LAYOUTS)
def test_undo_brings_everything_back(make, tmp_path: Path) -> None:
    for step in (100, 200, 300):
        make(tmp_path, step)
    before = snapshot(tmp_path)
    roll_back(tmp_path, 100)
    make(tmp_path, 200)
    make(tmp_path, 250)
    found, chosen = choose(tmp_path, 100)
    set_aside(find_newer(found, chosen), chosen.path, ".undone-0001", None)
    bring_back(tmp_path, ASIDE, ".undone-0001")
    assert {name: text for name, text in snapshot(tmp_path).items() if ".undone" not in name} == before
    assert any("250" in path.name for path in (tmp_path / ".undone-0001").iterdir())


@pytest.mark.parametrize("make", LAYOUTS)
def test_interrupted_rename_is_finished(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, renames = Path.rename, []

    def die_at(number: int):
        def rename_or_die(path: Path, target: Path) -> Path:
            renames.append(path)
            if len(renames) == number:
                raise KeyboardInterrupt
            return rename(path, target)

        return rename_or_die

    for number in (1, 2, 3, 4):
        place = tmp_path / str(number)
        for step in (100, 200, 300):
            make(place, step)
        renames.clear()
        monkeypatch.setattr(Path, "rename", die_at(number))
        with contextlib.suppress(KeyboardInterrupt):
            roll_back(place, 100)
        monkeypatch.setattr(Path, "rename", rename)
        roll_back(place, 100)
        make(tmp_path / f"expected-{number}", 100)
        left = {name: text for name, text in snapshot(place).items() if ASIDE not in name}
        assert left == snapshot(tmp_path / f"expected-{number}")


@pytest.mark.parametrize("make", LAYOUTS)
def test_step_saved_again_after_an_interruption_is_kept_twice(make, tmp_path: Path) -> None:
    make(tmp_path, 100)
    make(tmp_path, 200)
    first = roll_back(tmp_path, 100)
    for _ in range(2):
        make(tmp_path, 200)
        again = roll_back(tmp_path, 100)
        assert not set(first) & {path for path in again if not path.is_symlink()}
        assert all(path.is_symlink() or path.exists() for path in [*first, *again])
    assert max(checkpoint.step or 0 for checkpoint in list_checkpoints_in([tmp_path])) == 100


@pytest.mark.parametrize(
    "text", ["{name}", "../trained/{name}", "{place}/{name}", "{place}/../trained/{name}", "{other}/{name}"]
)
def test_link_is_set_aside_however_it_names_the_checkpoint(text: str, tmp_path: Path) -> None:
    place, other = tmp_path / "trained", tmp_path / "other"
    other.symlink_to(place)
    for step in (100, 200):
        make_composer(place, step)
    link = place / "latest-rank0.pt"
    link.unlink()
    link.symlink_to(text.format(name="ep0-ba200-rank0.pt", place=place, other=other))
    roll_back(place, 100)
    assert link.resolve() == place / "ep0-ba100-rank0.pt"


def test_links_in_a_circle_are_left_alone(tmp_path: Path) -> None:
    for step in (100, 200):
        make_transformers(tmp_path, step)
    (tmp_path / "a").symlink_to("b/x")
    (tmp_path / "b").symlink_to("a/x")
    assert [path.name for path in roll_back(tmp_path, 100)] == ["checkpoint-200"]


def test_copy_of_the_newest_is_found(tmp_path: Path) -> None:
    write(tmp_path / "epoch=0-step=100.ckpt", "PK\x03\x04.....PK\x05\x06")
    _, chosen = choose(tmp_path, 100)
    write(tmp_path / "last.ckpt", "PK\x03\x04.....PK\x05\x06")
    write(tmp_path / "best.ckpt", "PK\x03\x04.....PK\x05\x06")
    found = list_checkpoints_in([tmp_path])
    assert [path.name for path in find_copies_of_newest(found, chosen)] == ["last.ckpt"]


def test_configured_pointer_replaces_that_of_the_layout(tmp_path: Path) -> None:
    make_megatron(tmp_path, 100)
    _, chosen = choose(tmp_path, 100)
    pointer = find_pointer(chosen, file="newest.txt", text="iter_0000100")
    assert pointer is not None
    set_aside([], chosen.path, ASIDE, pointer)
    assert (tmp_path / "newest.txt").read_text() == "iter_0000100"
