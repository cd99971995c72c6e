"""What a trainer imports to read opsctl's requests and to report to opsctl. No module here needs the rest of opsctl.

`opsctl_contract.py` is a stand-alone file: a trainer in an environment without opsctl gets a copy beside its script,
and of `opsctl_step_times.py` if it measures its step times.
"""
