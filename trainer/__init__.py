"""A DeepSpeed pipeline trainer that stops when asked and resumes to the bit. It knows nothing of opsctl."""
