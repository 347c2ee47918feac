"""The relay: a daemon that ships outbox rows as half messages and ends each with commit or rollback."""
