"""Examples to copy: each folder is a small system that runs in processes of its own, is killed, and is counted."""
