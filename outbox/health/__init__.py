"""How the daemons stay up and say how they are: supervised loops, signs of life, and what probes are told."""
