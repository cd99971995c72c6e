"""Tools for assistants: commands of opsctl that a program calls by the Model Context Protocol."""
