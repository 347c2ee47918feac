"""The check-back: answers the broker's transaction checks from the database."""
