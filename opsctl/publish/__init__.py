"""Copies of logs, curves and reports for others to see: files.py says which, secrets.py what is struck out."""
