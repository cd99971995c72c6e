"""How nodes are: gathered once by a script on the node, judged purely."""
