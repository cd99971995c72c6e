"""A pytest plugin that prints every attack of tests/hostile with its result: `pytest -p tests.hostile.attack_table`.

An attack is one test below tests/hostile: the name of its mark `attack`, or of its function, with its parameters.
"""

from collections.abc import Iterator

import pytest

MIN_ATTACKS = 1750
ATTACKS = pytest.StashKey[dict[str, str]]()
RESULTS = pytest.StashKey[dict[str, str]]()


def name_attack(item: pytest.Item) -> str:
    mark = item.get_closest_marker("attack")
    name = str(mark.args[0]) if mark else item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
    parameters = item.name.partition("[")[2].removesuffix("]")
    return f"{name} [{ascii(parameters)[1:-1]:.60}]" if parameters else name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[ATTACKS] = {item.nodeid: name_attack(item) for item in items if "tests/hostile/" in item.nodeid}
    config.stash[RESULTS] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's Result
    results = item.config.stash[RESULTS]
    if report.failed:
        results[item.nodeid] = "SUCCEEDED"
    elif report.skipped:
        results.setdefault(item.nodeid, "not tried")
    elif report.when == "call":
        results.setdefault(item.nodeid, "repelled")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    attacks, results = config.stash.get(ATTACKS, {}), config.stash.get(RESULTS, {})
    terminalreporter.section("attacks")
    for nodeid, name in attacks.items():
        terminalreporter.write_line(f"{results.get(nodeid, 'not tried'):<10} {name}")
    counts = [sum(result == word for result in results.values()) for word in ("repelled", "SUCCEEDED", "not tried")]
    terminalreporter.write_line(
        f"{len(attacks)} attacks: {counts[0]} repelled, {counts[1]} successes, {counts[2]} not tried on this machine"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of fewer attacks than promised."""
    if session.testscollected and len(session.config.stash.get(ATTACKS, {})) < MIN_ATTACKS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
