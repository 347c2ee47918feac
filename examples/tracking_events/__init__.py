"""Page views by the ten thousand: sent plainly, counted once, many in one transaction."""
