"""The progress of attempts of foreign trainers: checkpoints anywhere, steps in any format."""

import os
from pathlib import Path

import pytest

from opsctl.guard import newest_checkpoint
from opsctl.guard.attempt_record import find_newest_checkpoint, read_start
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.finalize import finalize
from opsctl.guard.progress_signs import read_attempt_progress
from opsctl.state.run_dir import Attempt
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain


def set_command(train: QueuedTrain, *words: str) -> None:
    text = train.run.config.read_text()
    train.run.config.write_text(text.replace('command = ["true"]', f"command = {list(words)!r}"))


def start(train: QueuedTrain, name: str) -> Attempt:
    """Start an attempt with the marks of now."""
    attempt = train.start_attempt(name, checkpoint=find_newest_checkpoint(train.run))
    size = train.run.main_log.stat().st_size if train.run.main_log.exists() else 0
    attempt.start.write_text(attempt.start.read_text().replace('"main_log": 0', f'"main_log": {size}'))
    return attempt


def end(train: QueuedTrain, attempt: Attempt) -> FinishedAttempt:
    train.end_body(attempt, 1)
    return finalize(train.arrays, train.rules, attempt)


def save(directory: Path, name: str) -> None:
    (directory / name).mkdir(parents=True)
    (directory / name / "weights").write_text("1")


@pytest.mark.parametrize(("option", "name"), [("--save", "iter_0000500"), ("--output_dir", "checkpoint-500")])
def test_checkpoint_in_a_directory_of_the_command_is_new(
    train: QueuedTrain, tmp_path: Path, option: str, name: str
) -> None:
    own = tmp_path / "own"
    set_command(train, "train", option, str(own))
    first = start(train, "12_1.0")
    save(own, name)
    assert end(train, first).new_checkpoint
    assert not end(train, start(train, "12_2.0")).new_checkpoint


def test_checkpoint_in_a_directory_of_the_log_is_new_once(train: QueuedTrain, tmp_path: Path) -> None:
    own = tmp_path / "elsewhere"
    line = f"Saving model checkpoint to {own}/checkpoint-500\n"
    save(own, "checkpoint-400")
    first = start(train, "12_1.0")
    save(own, "checkpoint-500")
    train.run.main_log.write_text(line)
    assert end(train, first).new_checkpoint
    second = start(train, "12_2.0")
    with train.run.main_log.open("a") as log:
        log.write(line)
    assert not end(train, second).new_checkpoint


def test_crashes_with_checkpoints_elsewhere_hold_nothing(train: QueuedTrain, tmp_path: Path) -> None:
    set_command(train, "train", "--save", str(tmp_path / "own"))
    for task in range(1, 6):
        attempt = start(train, f"12_{task}.0")
        save(tmp_path / "own", f"step{task}00")
        end(train, attempt)
    assert not any(job.is_held for job in train.queue.waiting)


def test_steps_of_each_attempt_are_its_own(train: QueuedTrain) -> None:
    first = start(train, "12_1.0")
    train.run.main_log.write_text("".join(f"{{'loss': '2.0', 'global_step': '{step}'}}\n" for step in (10, 20, 30)))
    second = start(train, "12_2.0")
    with train.run.main_log.open("a") as log:
        log.write("{'loss': '2.0', 'global_step': '21'}\n")
    pairs = ((first, read_start(second)), (second, None))
    steps = [read_attempt_progress(train.run, a, read_start(a), next_start) for a, next_start in pairs]
    assert [(progress.resume_step, progress.highest_step) for progress in steps] == [(9, 30), (20, 21)]


def append(train: QueuedTrain, text: str) -> None:
    with train.run.main_log.open("a") as log:
        log.write(text)


def test_progress_bar_of_a_resumed_attempt_begins_where_it_goes_on(train: QueuedTrain) -> None:
    attempt = start(train, "12_1.0")
    bars = "  0%|          | 0/1000 [00:00<?, ?it/s]\r 50%|#####     | 501/1000 [00:02<00:03, 9.50it/s]\n"
    append(train, " 50%|#####     | 1/2 [00:00<00:01, 9.50it/s]\n" + bars)
    assert read_attempt_progress(train.run, attempt, read_start(attempt)).resume_step == 500


def test_first_step_behind_a_file_without_a_step_is_new(train: QueuedTrain, tmp_path: Path) -> None:
    own = tmp_path / "own"
    set_command(train, "train", "--save", str(own))
    own.mkdir()
    (own / "pretrained.pt").write_bytes(b"weights")
    attempt = start(train, "12_1.0")
    save(own, "step-500")
    assert end(train, attempt).new_checkpoint


def test_data_in_a_usual_directory_hides_no_crash_loop(train: QueuedTrain) -> None:
    os.utime(train.run.checkpoints, (1, 1))
    outputs = train.run.path / "outputs"
    outputs.mkdir()
    for task in range(1, 9):
        attempt = start(train, f"12_{task}.0")
        (outputs / "vocab.pkl").write_text(f"{task}")
        assert not end(train, attempt).new_checkpoint
    assert all(job.is_held for job in train.queue.waiting)


EPOCH = "".join(f"step {step} loss: 2.0\n" for step in range(1, 40))


@pytest.mark.parametrize(
    ("resumes", "is_held"), [("resumed from epoch {}\n", False), ("Loading model from /b\n", True)]
)
def test_train_that_counts_anew_is_held_unless_it_resumes(train: QueuedTrain, resumes: str, is_held: bool) -> None:
    for task in range(1, 9):
        attempt = start(train, f"12_{task}.0")
        append(train, (resumes.format(task) if task > 1 else "") + EPOCH)
        train.end_body(attempt, 1, after=3600)
        finalize(train.arrays, train.rules, attempt)
    assert {job.is_held for job in train.queue.waiting} == {is_held}


def test_checkpoint_that_is_written_again_after_a_resume_is_new(train: QueuedTrain, tmp_path: Path) -> None:
    own = tmp_path / "own"
    set_command(train, "train", "--save", str(own))
    save(own, "step-39")
    save(own, "step-20")
    attempt = start(train, "12_1.0")
    append(train, f"Resuming from checkpoint {own}/step-39\n{EPOCH}")
    (own / "step-20" / "weights").write_text("2")
    assert end(train, attempt).new_checkpoint


def test_pattern_that_fits_no_line_hides_no_steps(train: QueuedTrain) -> None:
    train.run.config.write_text(f"{train.run.config.read_text()}[progress]\npattern = 'Schritt (?P<step>\\d+)'\n")
    attempt = start(train, "12_1.0")
    append(train, "step 5 loss: 2.0\nstep 6 loss: 2.0\n")
    assert end(train, attempt).highest_step == 6
    again = start(train, "12_2.0")
    append(train, "Schritt 7\nstep 900 loss: 2.0\n")
    assert end(train, again).highest_step == 7


def test_newest_of_many_entries_is_found_by_its_number(train: QueuedTrain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_checkpoint, "MAX_ENTRIES_LOOKED_AT", 3)
    for number in range(1, 12):
        path = train.run.checkpoints / f"part{number}.dat"
        path.write_text("1")
        os.utime(path, (number, number))
    newest = newest_checkpoint.find_newest(train.run)
    assert newest is not None
    assert (newest.path.name, newest.mark) == ("part11.dat", 11 * 10**9)


def run_attempts(train: QueuedTrain, tasks: range) -> int | None:
    """Run attempts of an hour that neither save nor log; return after which task the train is held."""
    for task in tasks:
        attempt = start(train, f"12_{task}.0")
        train.end_body(attempt, 1, after=3600)
        if finalize(train.arrays, train.rules, attempt).action.is_final:
            return task
    return None


def save_once(train: QueuedTrain, own: Path, *, after_minutes: float) -> FinishedAttempt:
    set_command(train, "train", "--save", str(own))
    attempt = start(train, "12_1.0")
    save(own, "step100")
    began_s = (own / "step100").stat().st_mtime - 60 * after_minutes
    os.utime(attempt.start, (began_s, began_s))
    train.end_body(attempt, 1, after=36_000)
    return finalize(train.arrays, train.rules, attempt)


@pytest.mark.parametrize(("after_minutes", "held"), [(30, 6), (190, 8)])
def test_train_that_saves_no_more_is_held(train: QueuedTrain, tmp_path: Path, after_minutes: float, held: int) -> None:
    saved = save_once(train, tmp_path / "own", after_minutes=after_minutes)
    assert saved.save_gap_minutes == pytest.approx(after_minutes, abs=0.1)
    assert run_attempts(train, range(2, 11)) == held


def test_train_with_unreadable_checkpoints_is_not_held(train: QueuedTrain, tmp_path: Path) -> None:
    save_once(train, tmp_path / "own", after_minutes=30)
    (tmp_path / "own").rename(tmp_path / "away")
    assert run_attempts(train, range(2, 11)) is None


def test_train_that_writes_a_checkpoint_again_is_not_held(train: QueuedTrain, tmp_path: Path) -> None:
    own = tmp_path / "own"
    save_once(train, own, after_minutes=30)
    for task in range(2, 11):
        attempt = start(train, f"12_{task}.0")
        (own / "step100" / "weights").write_text(f"{task}")
        train.end_body(attempt, 1, after=3600)
        assert finalize(train.arrays, train.rules, attempt).has_unclear_saves
    assert not any(job.is_held for job in train.queue.waiting)


@pytest.mark.parametrize(("saved", "gap"), [((500, 560, 560.1), 60), ((500, 500.1), 500.1)])
def test_gap_of_saves_skips_files_of_one_save(
    train: QueuedTrain, tmp_path: Path, saved: tuple[float, ...], gap: float
) -> None:
    own = tmp_path / "own"
    set_command(train, "train", "--save", str(own))
    attempt = start(train, "12_1.0")
    began_s = attempt.start.stat().st_mtime - 36_000
    os.utime(attempt.start, (began_s, began_s))
    for number, minutes in enumerate(saved, start=1):
        name = f"step{number}00"
        save(own, name)
        for path in (own / name / "weights", own / name):
            os.utime(path, (began_s + 60 * minutes,) * 2)
    train.end_body(attempt, 1, after=36_000)
    assert finalize(train.arrays, train.rules, attempt).save_gap_minutes == pytest.approx(gap)


@pytest.mark.parametrize("option", ["--save", "--ckpt", "--checkpoints"])
@pytest.mark.parametrize("name", ["ckpt_120.json", "checkpoint.json", "state.json", "step_120.txt", "120/state.json"])
def test_state_kept_as_text_is_a_checkpoint(train: QueuedTrain, tmp_path: Path, option: str, name: str) -> None:
    own = tmp_path / "own"
    set_command(train, "train", option, str(own))
    attempt = start(train, "12_1.0")
    (own / name).parent.mkdir(parents=True)
    (own / name).write_text("120")
    assert end(train, attempt).new_checkpoint
    assert not end(train, start(train, "12_2.0")).new_checkpoint


@pytest.mark.parametrize("name", ["run.ckpt", "progress.bin", "state"])
def test_single_file_of_the_command_is_a_checkpoint(train: QueuedTrain, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    set_command(train, "train", "--ckpt", str(file))
    first = start(train, "12_1.0")
    file.write_text("120")
    assert end(train, first).new_checkpoint
    assert not end(train, start(train, "12_2.0")).new_checkpoint


def test_log_that_an_option_names_is_no_checkpoint(train: QueuedTrain, tmp_path: Path) -> None:
    set_command(train, "train", "--ckpt", str(tmp_path / "train.log"))
    attempt = start(train, "12_1.0")
    (tmp_path / "train.log").write_text("failed")
    assert not end(train, attempt).new_checkpoint


@pytest.mark.parametrize(*read_cases(__file__, "saves_that_only_the_log_names_are_checkpoints"))
def test_saves_that_only_the_log_names_are_checkpoints(train: QueuedTrain, tmp_path: Path, text: str) -> None:
    first = start(train, "12_1.0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "ckpt_120.json").write_text("120")
    append(train, text.format(tmp_path / "elsewhere") + "\n")
    assert end(train, first).new_checkpoint


def test_scattered_failures_of_short_tasks_hold_nothing(train: QueuedTrain) -> None:
    for task in range(1, 9):
        attempt = start(train, f"12_{task}.0")
        attempt.deadline.write_text(f"{train.clock.now().timestamp() + 120:.0f}\n")
        train.end_body(attempt, 1, after=75 if task % 3 == 0 else 30)
        finalize(train.arrays, train.rules, attempt)
    assert not any(job.is_held for job in train.queue.waiting)


def test_attempt_that_is_finalized_late_ends_where_the_next_began(train: QueuedTrain, tmp_path: Path) -> None:
    """The guard of a dead node finalizes nothing, and Slurm may call its job active until the next attempt is over."""
    own = tmp_path / "own"
    set_command(train, "train", "--save", str(own))
    log = train.run.main_log
    first = start(train, "12_1.0")
    save(own, "iter_0000020")
    lines = [f" iteration {step}/160 | lm loss: 2.0E+00 |\n" for step in range(161)]
    log.write_text("".join(lines[1:30]))
    train.end_body(first, 137)
    start(train, "12_2.0")
    save(own, "iter_0000160")
    log.write_text(
        log.read_text() + "".join(f" iteration {step}/160 | lm loss: 2.0E+00 |\n" for step in range(21, 161))
    )
    ended = finalize(train.arrays, train.rules, first)
    assert (ended.outcome, ended.highest_step, ended.new_checkpoint) == (Outcome.CRASHED, 29, True)


def test_checkpoint_of_the_next_attempt_is_not_that_of_a_late_one(train: QueuedTrain, tmp_path: Path) -> None:
    own = tmp_path / "own"
    set_command(train, "train", "--save", str(own))
    first = start(train, "12_1.0")
    train.end_body(first, 137)
    start(train, "12_2.0")
    save(own, "iter_0000160")
    assert not finalize(train.arrays, train.rules, first).new_checkpoint


def run_tutorial(train: QueuedTrain, task: int, first: int, last: int) -> FinishedAttempt:
    """Fail from outside as a trainer of PyTorch's DDP tutorial, which saves to its working directory."""
    attempt = start(train, f"12_{task}.0")
    resumed = f"Loading snapshot\nResuming training from snapshot at Epoch {first}\n" if first else ""
    append(train, resumed + "".join(f"[GPU0] Epoch {n} | Batchsize: 32 | Steps: 64\n" for n in range(first, last + 1)))
    return end(train, attempt)


def test_epochs_of_the_ddp_tutorial_are_progress(train: QueuedTrain) -> None:
    ends = [run_tutorial(train, task, *epochs) for task, epochs in enumerate(((0, 136), (136, 138), (138, 158)), 1)]
    assert [(ended.resume_epoch, ended.highest_epoch) for ended in ends] == [(-1, 136), (135, 138), (137, 158)]
    assert not any(job.is_held for job in train.queue.waiting)
    held = [run_tutorial(train, task, 158, 158) for task in range(4, 9)][-1]
    assert held.action is Action.HOLD_QUEUED


def test_file_that_the_log_names_is_a_checkpoint_whenever_it_changes(train: QueuedTrain) -> None:
    for task in range(1, 6):
        attempt = start(train, f"12_{task}.0")
        (train.run.path / "snapshot.pt").write_text(f"{task}")
        append(train, "[GPU0] Training snapshot saved at snapshot.pt\n")
        assert end(train, attempt).new_checkpoint
    silent = start(train, "12_6.0")
    save(train.run.path / "of-somebody-else", "step-500")
    append(train, "[GPU0] Training snapshot saved at snapshot.pt\n")
    assert not end(train, silent).new_checkpoint


def test_weights_that_change_in_the_working_directory_are_a_checkpoint(train: QueuedTrain) -> None:
    os.utime(train.run.checkpoints, (1, 1))
    for task in range(1, 6):
        attempt = start(train, f"12_{task}.0")
        (train.run.path / "model_last.pth").write_text(f"{task}")
        (train.run.path / "vocab.pkl").write_text(f"{task}")
        assert end(train, attempt).new_checkpoint
    idle = start(train, "12_6.0")
    (train.run.path / "vocab.pkl").write_text("6")
    assert not end(train, idle).new_checkpoint


def test_loss_and_epoch_of_transformers_are_progress(train: QueuedTrain) -> None:
    for task, epoch in enumerate((0.02, 0.31, 0.52, 0.8), 1):
        attempt = start(train, f"12_{task}.0")
        append(train, f"{{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n")
        append(train, f"{{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch + 0.3:.2f}}}\n")
        end(train, attempt)
    assert not any(job.is_held for job in train.queue.waiting)


def test_second_exit_without_an_epoch_ends_a_train_of_epochs(train: QueuedTrain) -> None:
    ends = []
    for task, text in enumerate(("Epoch 1\nEpoch 2\n", "Epoch 3\nEpoch 4\n", ""), 1):
        attempt = start(train, f"12_{task}.0")
        attempt.deadline.write_text(f"{train.clock.now().timestamp() + 600}\n")
        append(train, text)
        train.end_body(attempt, 0, after=60 if not text else 400)
        ends.append(finalize(train.arrays, train.rules, attempt).outcome)
    assert ends == [Outcome.DEADLINE, Outcome.DEADLINE, Outcome.FINISHED]
