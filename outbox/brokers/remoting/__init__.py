"""RocketMQ's remoting protocol in pure Python: threads, pipelining, 4.9 and 5.x.

``RemotingBroker`` is the broker port, ``PopSource`` the receiving port.
"""
