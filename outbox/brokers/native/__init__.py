"""RocketMQ through Apache's native client: ``librocketmq``, which ``rocketmq-client-python`` brings to Python.

The client sends halves and plain messages; ends, look-ups and checks go through ``outbox.brokers.remoting``
(``docs/decisions/0006-what-the-native-client-does.md`` says why).
"""
