"""Periodic jobs: a crontab and drop-in directories, run by the ticks of a driver."""
