"""`python -m opsctl.integrations > opsctl_contract.py`: a copy of the file for trainers without opsctl."""

from __future__ import annotations

import sys
from pathlib import Path

sys.stdout.write(Path(__file__).with_name("opsctl_contract.py").read_text())
