"""Words that a shell, a template or an option parser could misread."""

from tests.support.cases import read_table

HOSTILE_WORDS: list[str] = [*read_table(__file__, "words"), "x" * 300]
