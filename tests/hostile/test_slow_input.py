"""Input on which parsers take time that grows with the square of its size: refused before it is parsed."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.base.errors import ConfigError
from opsctl.checkpoints.trainer_command.value_files import read_values
from opsctl.nodes.health.node_local import read_thresholds
from opsctl.settings.loader import load_site, load_train

COUNT = 200_000
TOML = {
    "dotted": "a" + ".a" * COUNT + "=1",
    "spaced": "a" + " . a" * COUNT + "=1",
    "quoted": '"a"' + ".'a'" * COUNT + "=1",
    "table": "[a" + ".a" * COUNT + "]",
    "array of tables": "[[a" + ".a" * COUNT + "]]",
    "inline": "a={b" + ".b" * COUNT + "=1}",
    "behind a text": 's = """' + '\\"""' * 9 + '"""\na' + ".a" * COUNT + "=1",
    "behind an open text": "a" + ".a" * COUNT + "=1\ns='''",
    "nested tables": "a={b=" * COUNT,
    "nested lists": "a=" + "[" * COUNT,
    "keys": "".join(f"k{number}=1\n" for number in range(COUNT)),
    "texts": 's="' + '"""' * COUNT + "\\",
}
READERS: dict[str, Callable[[Path], object]] = {
    "train": load_train,
    "site": load_site,
    "trainer": read_values,
    "node": read_thresholds,
}


@pytest.mark.attack("a settings file of a stranger stops every command that reads it")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", TOML)
def test_toml_is_read_in_time(tmp_path: Path, kind: str, reader: str) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TOML[kind])
    began = time.process_time()
    try:
        READERS[reader](path)
    except (ConfigError, ValueError, OSError) as error:
        assert len(str(error)) < 200_000
    assert time.process_time() - began < 10


def test_usual_toml_is_read(tmp_path: Path) -> None:
    texts = [
        '"a.b.c"' + ".x" * 30 + "=1",
        "a=[" + "0.5, " * 500 + "]",
        's="' + ". " * 500 + '"',
        "#" + "." * 500 + "\nd=1.5",
    ]
    for number, text in enumerate(texts):
        with pytest.raises(ConfigError, match="unknown key"):
            (path := tmp_path / f"{number}.toml").write_text(text)
            load_train(path)
