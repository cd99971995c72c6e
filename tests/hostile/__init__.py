"""Attacks on the shared root by other users. Each test carries `attack(name)`; the names make a table."""
