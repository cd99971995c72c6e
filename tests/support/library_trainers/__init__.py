"""Trainers of real libraries, each a script of its own: `python SCRIPT PLACE STEPS`.

Every step takes longer while the file `slow` exists in PLACE. Rank 0 writes each step to `PLACE/steps`.
"""
