"""Parsers raise nothing on any input, and an unknown state is not final."""

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.base.units import parse_slurm_minutes
from opsctl.slurm import parse_output
from opsctl.slurm.field_values import parse_exit_code, parse_tasks, parse_time

MARK = "\x1fmark"
WORD = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["12", "[1-3%1]", "RUNNING", "N/A", "node[001-", "@all", "1795219708", "9" * 25, "٣", "1-4000000:99"]
    ),
    st.from_regex(r"[0-9,:%\[\]-]{0,12}", fullmatch=True),
)
TEXT = st.lists(WORD, max_size=60).map(MARK.join)


@settings(deadline=None)  # millions of array tasks take longer than the default deadline
@given(text=TEXT)
def test_no_row_raises(text):
    for parser in (
        parse_output.parse_jobs,
        parse_output.parse_past,
        parse_output.parse_nodes,
        parse_output.parse_excluded,
        parse_output.parse_end,
    ):
        parser(text, MARK)


@given(text=st.one_of(st.text(), st.lists(WORD).map("=".join), st.lists(WORD).map("\n".join)))
def test_no_listing_raises(text):
    parse_output.parse_partitions(text)
    parse_output.parse_limits(text)


@settings(deadline=None)  # the same reason as above
@given(word=WORD)
def test_no_word_raises(word):
    for parser in (parse_tasks, parse_time, parse_slurm_minutes, parse_exit_code):
        parser(word)


@given(name=st.text(max_size=400), comment=st.text(max_size=400))
def test_name_cannot_change_its_row(name, comment):
    row = ["12", "12", "N/A", "PENDING", "None", "", "1", "me", "train", *["N/A"] * 4, "0", "0", comment, name]
    text = "".join(word + MARK for word in row) + "\n"
    (job,) = parse_output.parse_jobs(text * 2, MARK)[:1]
    assert (job.id, job.name, job.comment) == ("12", name, parse_output.parse_text(comment))
