"""Files of models that somebody has downloaded: configurations, chat templates and pickles, read by what reads them."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest

from opsctl.base.errors import OpsctlError
from opsctl.diagnosis import flight_recorder
from opsctl.trainer.chat import ChatTemplate, TemplateFailed, find_template
from opsctl.trainer.checkpoint.transformers_config import read_model
from opsctl.trainer.errors import Refused
from tests.hostile.conftest import Site
from tests.hostile.fuzz import FuzzTarget, bounded_memory, bounded_time, find_failure
from tests.hostile.fuzz_outside import MODEL
from tests.support.cases import read_cases

LARGE = {"{long}": "9" * 4000, "{deep}": "[" * 9000 + "]" * 9000, "{many}": '"a", ' * 99_999 + '"a"'}
LARGE |= {"{many_blocks}": "{% if a %}" * 5000, "{digits}": "9" * 400_000, "{letters}": "a" * 400_000}
PLAN = ("--gpus", 64, "--gpu", "H100", "--batch", 512, "--tokens", 100, "--network", 400)


def enlarge(text: str) -> str:
    for name, large in LARGE.items():
        text = text.replace(name, large)
    return text


@pytest.fixture(autouse=True)
def limits():
    with bounded_time(), bounded_memory(1 << 30):
        yield


@pytest.mark.attack("the configuration of a model stops or misleads a command")
@pytest.mark.parametrize("command", ["overview", "train", "preflight"])
@pytest.mark.parametrize(*read_cases(__file__, "configs", config=enlarge, whole=enlarge))
def test_configuration_is_refused_or_read(site: Site, tmp_path: Path, command: str, config: str, whole: str) -> None:
    good = MODEL[0].decode()
    text = good.replace("{", f"{{{config}, ", 1) if whole is None else whole
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "evil.py").write_text("open('owned', 'w')")

    def read(_: bytes) -> object:
        if command == "train":
            return read_model(tmp_path)
        if command == "preflight":
            (tmp_path / "train.toml").write_text(
                f'name = "a"\ncommand = ["python", "run_clm.py", "--config_name", "{path}"]\n'
                '[slurm]\nnodes = 1\ntime_limit = "60"\n'
            )
            result = site.opsctl("preflight", tmp_path / "train.toml")
        else:
            result = site.opsctl("plan", "overview", path, *PLAN)
        assert "\x1b" not in result.output
        assert len(result.output) < 60_000
        if result.exception:
            raise result.exception
        return None

    assert find_failure(FuzzTarget(read, errors=(OpsctlError, Refused, SystemExit)), b"") == ""  # type: ignore[arg-type]
    assert not list(tmp_path.glob("**/owned"))


@pytest.mark.attack("a chat template leaves its sandbox, or never ends")
@pytest.mark.parametrize(*read_cases(__file__, "templates", text=enlarge))
def test_template_stays_in_its_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jinja").write_text(text)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    written: list[str] = []

    def write(_: bytes) -> None:
        template = find_template(None, tmp_path / "chat.jinja")
        assert isinstance(template, ChatTemplate)
        written.append(template.spans(messages, 0, {})[0])

    assert find_failure(FuzzTarget(write, errors=(Refused, TemplateFailed)), b"") == ""
    assert not (tmp_path / "owned").exists()
    assert [message["content"] for message in messages] == ["a", "b"]
    assert not any(word in str(written) for word in ("root:", "<class", "<module", "<function"))


@pytest.mark.attack("a file of a tokenizer blocks its reader")
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "deep", "no object", "large"])
def test_file_of_a_tokenizer_is_a_file(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text({"deep": "[" * 99_999, "no object": "[1]", "large": " " * (64 << 20)}[kind])

    target = FuzzTarget(lambda _: find_template(tmp_path / "tokenizer.json", None), errors=(Refused, OSError))
    assert find_failure(target, b"") == ""


def make_pickle(made: Path, digits: str | None, text: str | None, shared: int | None) -> bytes:
    if shared:
        content: list[object] = []
        for _ in range(shared):
            content = [content, content]
        entry = {"process_group": ["0", "a"], "collective_seq_id": 1, "profiling_name": "a", "input_sizes": content}
        return pickle.dumps({"entries": [entry], "pg_config": {"0": {"ranks": content}}})
    return bytes.fromhex(digits) if digits is not None else (text or "").replace("{made}", str(made)).encode()


@pytest.mark.attack("a pickle runs code, or takes memory or time without end")
@pytest.mark.parametrize("reader", ["dump", "checkpoint"])
@pytest.mark.parametrize(*read_cases(__file__, "pickles"))
def test_pickle_is_refused(tmp_path, reader, ascii, hex, shared):
    path = tmp_path / "flight-3"
    data = make_pickle(tmp_path / "made", hex, ascii, shared)
    path.write_bytes(data)
    if reader == "checkpoint":
        load = pytest.importorskip("opsctl.trainer.checkpoint.pickles", reason="needs the trainer extra").load
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", data)
            archive.writestr("a/version", "3\n")
        assert find_failure(FuzzTarget(lambda _: load(path), errors=(Refused,)), b"") == ""
    else:
        target = FuzzTarget(
            lambda _: flight_recorder.describe_dumps([flight_recorder.read_dump(path)]), errors=(ValueError,)
        )
        assert find_failure(target, b"") == ""
    assert not (tmp_path / "made").exists()
