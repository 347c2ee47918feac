"""The proof: what the toolkit promises, shown on real servers and real processes."""
