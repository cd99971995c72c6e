"""The models of benchmarks/gpu_proof.py, as model tables of the trainer."""

GIB = 2**30

TINY = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 64, "vocabulary": 512}
SMALL = {"layers": 6, "hidden": 512, "heads": 8, "sequence": 512, "vocabulary": 512}
GPT_125M = {"layers": 12, "hidden": 768, "heads": 12, "sequence": 2048, "vocabulary": 50304}
GPT_1_3B = {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 50304}
LLAMA_3B = {
    "family": "llama",
    "layers": 28,
    "hidden": 3072,
    "heads": 24,
    "kv_heads": 8,
    "ffn": 8192,
    "sequence": 4096,
    "vocabulary": 32000,
}
LLAMA_7B = LLAMA_3B | {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008}
LARGE = {"Llama 7B": (LLAMA_7B, 125 * GIB), "Llama 3B": (LLAMA_3B, 70 * GIB)}
"""Models without a plain loop beside them, and the memory that each needs."""
