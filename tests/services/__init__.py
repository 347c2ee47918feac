"""Real servers on throw-away folders and free loopback ports, for tests, benchmarks and scripts.

Each server is a context manager: ``with Postgres() as server: connect(server.url)``. ``kill`` is a crash (SIGKILL),
``restart`` comes back on the same folder and port, ``stop`` ends exactly what was started and removes the folder. A
reaper does the same when the owner dies without a word, so nothing is left running.
"""
