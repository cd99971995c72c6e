"""Questions that one module answers: everybody else calls it. A second place is a defect even while both agree."""

import re

from tests.rules.import_map import PRODUCT, ROOT

OWNERS = {
    r'"ledger\.json"': ("opsctl/alerts/ledger_files.py", "opsctl/cron/cron_dir.py"),
    r'"retry-after"': ("opsctl/base/web.py", "opsctl/dash/web_app.py"),
    r'"n_embed"': ("trainer/checkpoint/transformers.toml",),
    r'"H100": \d|^"?H100"? = \d|^tflops = \d': ("trainer/peak_tflops.toml",),
    r"CONTEXT_BYTES = ": ("trainer/footprint.py",),
    r'"stopped by a debugger': ("opsctl/diagnosis/patterns.toml",),
}
"""By what only its owners write: the owners. The page's server sends Retry-After; cron has a ledger of its own."""


def test_every_question_has_one_owner() -> None:
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".toml"}]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files if not path.is_symlink()}
    found = {}
    for pattern in OWNERS:
        sought = re.compile(pattern, re.MULTILINE | re.IGNORECASE)
        found[pattern] = tuple(sorted(name for name, text in texts.items() if sought.search(text)))
    assert found == OWNERS
