"""What the toolkit costs, side by side with its peers: ``make bench NAME=...`` runs one module."""
