"""The main job on real servers, in real processes."""
