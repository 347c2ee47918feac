"""Random faults over the whole deployment, and an audit of what came out.

The tests run a short campaign on each database; ``python -m tests.crash`` runs a long one.
"""
