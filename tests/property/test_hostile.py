"""Any text goes through the real template under bash: the text arrives and is not executed."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.launch.render import PLACEHOLDER
from tests.integration.shell.conftest import Bench, bench

__all__ = ["bench"]

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
SHELL = st.lists(
    st.sampled_from(["'", '"', "$", "(", ")", "`", "\\", "\n", " ", "{{", "}}", "{%", "%", "-", "!", "id"])
).map("".join)
HOSTILE = (TEXT | SHELL).filter(lambda text: not PLACEHOLDER.search(text))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(HOSTILE, max_size=4), value=HOSTILE)
def test_command_reaches_the_rank_unchanged(bench: Bench, words: list[str], value: str) -> None:
    done = bench.run(bench.script(["dump", *words], environment={"V": value}))
    assert done.returncode == 0, done.stderr
    assert bench.dumped == [value, *words]
