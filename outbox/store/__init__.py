"""The store: every statement that reads or changes an outbox row."""
