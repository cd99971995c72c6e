"""Print a file for trainers without opsctl: `python -m opsctl.integrations > opsctl_contract.py`.

`python -m opsctl.integrations step-times > opsctl_step_times.py` prints the optional second file.
"""

import sys
from pathlib import Path

name = "opsctl_step_times.py" if sys.argv[1:] == ["step-times"] else "opsctl_contract.py"
sys.stdout.write(Path(__file__).with_name(name).read_text())
