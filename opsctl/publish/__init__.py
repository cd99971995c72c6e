"""Publish copies of logs, curves and reports: sources.py selects files, redaction.py removes secrets."""
