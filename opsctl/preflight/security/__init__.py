"""Who else could read or change what opsctl reads, runs and sends: the checks of `opsctl doctor --security`."""
