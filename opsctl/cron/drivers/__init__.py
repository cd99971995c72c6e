"""Drivers of ticks: a job that resubmits itself, a daemon in the foreground, or the site's own scheduler."""
