"""The clients that ``benchmarks.transports`` compares, each a program of its own."""
