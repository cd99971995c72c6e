"""Files of TensorBoard, W&B and tables, as `opsctl report --log` reads them of other users."""

import io
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from opsctl.telemetry.progress.tracker_log import read_tracker_log
from opsctl.telemetry.progress.tracker_records import BLOCK_BYTES, WANDB_HEADER_BYTES, read_wandb

HEADER = b":W&B" + bytes(WANDB_HEADER_BYTES - 4)
LIMIT_S = 20


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """End a reader that never ends."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.attack("a W&B file ends within the last bytes of a block")
@pytest.mark.parametrize("missing", range(7))
def test_file_that_ends_in_a_trailer_is_read(missing: int) -> None:
    length = BLOCK_BYTES - WANDB_HEADER_BYTES - 7 - missing
    record = bytes(4) + length.to_bytes(2, "little") + b"\1" + bytes(length)
    assert list(read_wandb(io.BytesIO(HEADER + record))) == []


@pytest.mark.attack("a W&B file of empty records costs the square of its size")
@pytest.mark.parametrize("kind", [0, 2, 3])
def test_empty_records_are_cheap(kind: int) -> None:
    assert list(read_wandb(io.BytesIO(HEADER + (bytes(6) + bytes([kind])) * 500_000))) == []


@pytest.mark.attack("a sparse file of a tracker never ends")
@pytest.mark.parametrize("name", ["events.out.tfevents.1700000000.n1", "run-1.wandb"])
def test_sparse_file_ends(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.write(HEADER if name.endswith(".wandb") else b"")
        file.truncate(1 << 40)
    assert not len(read_tracker_log(tmp_path / name).parts[-1])


@pytest.mark.attack("a field or a number of a table ends the report")
@pytest.mark.parametrize("cell", ["9" * 200_000, "1e300", "\0", "9" * 500, "-1e300"])
def test_wrong_cell_is_passed_over(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(f"step,loss\n1,2.5\n{cell},{cell}\n")
    assert read_tracker_log(path).parts[0].columns[0].tolist() == [1]


@pytest.mark.attack("a table whose steps go back at every row makes a part of each")
def test_parts_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("step,loss\n" + "2,1.5\n1,1.5\n" * 20_000)
    assert len(read_tracker_log(path).parts) <= 10_000
