"""The loss watchdog: incidents between two cycles, and permanent rises until a person accepts them."""

from opsctl.base.findings import Severity
from opsctl.watchdogs.context import accept
from tests.support.watch_context import Bench

NO_LOSS = "gpt: no loss in the log"


def test_passed_spike_is_reported_at_once(bench: Bench) -> None:
    bench.steps(1, 200)
    bench.judge("loss")
    bench.steps(200, 206, loss=5.0)
    bench.steps(206, 300)
    finding = bench.judge("loss")
    assert (finding.severity, finding.is_certain) == (Severity.WARNING, True)
    spiked = "the loss spiked from 2 to 5 at step 200 and was back after 8 log lines"
    assert finding.summary == f"gpt: {spiked}; now 2 at step 299"
    bench.steps(300, 310)
    assert bench.judge("loss").severity is Severity.OK


def test_spike_before_the_first_cycle_is_no_news(bench: Bench) -> None:
    bench.steps(1, 200)
    bench.steps(200, 206, loss=5.0)
    bench.steps(206, 300)
    assert bench.judge("loss").severity is Severity.OK


def test_permanent_rise_ends_when_a_person_accepts(bench: Bench) -> None:
    bench.steps(1, 400)
    bench.judge("loss")
    for first in range(400, 1400, 100):
        bench.steps(first, first + 100, loss=2.6)
        finding = bench.judge("loss")
    assert (finding.severity, finding.wants_rollback) == (Severity.CRITICAL, True)
    assert finding.summary == "gpt: the loss stays 30 % above the 2 before step 400: 2.6 at step 1399"
    assert finding.remedy.endswith("opsctl alerts accept loss/gpt --reason ...")
    accept(bench.make_context().memory, "loss/gpt", at="2026-01-05T02:00:00+00:00", by="anna", reason="new mixture")
    bench.steps(1400, 1410, loss=2.6)
    assert bench.judge("loss").severity is Severity.OK
    bench.steps(1410, 1800, loss=2.6)
    assert bench.judge("loss").severity is Severity.OK


def test_log_without_a_loss_is_unknown(bench: Bench) -> None:
    bench.write_log(*(f"step {step}/1000 | 1.2 s" for step in range(1, 50)))
    finding = bench.judge("loss")
    assert (finding.severity, finding.summary) == (Severity.UNKNOWN, NO_LOSS)
    assert "[progress] pattern" in finding.remedy


def test_log_without_a_step_is_unknown(bench: Bench) -> None:
    bench.write_log("the trainer prints nothing of its progress")
    finding = bench.judge("loss")
    assert (finding.severity, finding.summary) == (Severity.UNKNOWN, NO_LOSS)


def test_train_that_has_logged_nothing_yet_is_no_problem(bench: Bench) -> None:
    finding = bench.judge("loss")
    assert (finding.severity, finding.summary) == (Severity.OK, "gpt: no loss: nothing logged yet")


def test_epochs_count_where_the_log_shows_no_steps(bench: Bench) -> None:
    """As transformers logs without progress bars."""
    line = "{{'loss': {loss}, 'grad_norm': 0.7, 'learning_rate': 4e-05, 'epoch': {epoch}}}"
    bench.write_log(*(line.format(loss=2.0, epoch=number / 100) for number in range(1, 200)))
    assert bench.judge("loss").summary == "gpt: loss 2 at epoch 1.99"
    bench.write_log(*(line.format(loss=5.0, epoch=2 + number / 100) for number in range(30)))
    finding = bench.judge("loss")
    assert finding.summary.startswith("gpt: the loss spiked from 2 to 5 at epoch 2; now 5 at epoch 2.29")
    assert (finding.severity, finding.since_step) == (Severity.WARNING, None)
    bench.steps(1, 30)
    assert bench.judge("loss").summary == "gpt: loss 2 at step 29"
