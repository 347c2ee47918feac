"""RocketMQ's remoting protocol in pure Python: threads, pipelining, 4.9 and 5.x.

``RemotingBroker`` is the broker port, ``PopSource`` the receiving port, ``Admin`` what tests, ``doctor`` and first runs
need to ask of a cluster.
"""
