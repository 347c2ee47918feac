"""Brokers: the port that every transport implements, and the transports behind it."""
