"""How much of the wall-clock was training, and where did the rest go?"""
