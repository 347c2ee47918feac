"""The broker port over gRPC, through the proxy of RocketMQ 5; needs ``pip install 'rocketmq-outbox[grpc]'``.

Importing this package imports nothing of the client; ``outbox.brokers.grpc.broker`` does.
"""
