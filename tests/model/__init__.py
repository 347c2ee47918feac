"""An exhaustive exploration of the protocol over the pure functions that the daemons use."""
