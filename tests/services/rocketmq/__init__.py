"""A RocketMQ cluster for tests and benchmarks: one name server and one broker, on a throw-away folder.

with RocketMQ() as cluster:
    cluster.create_topics(["payments"])
    connect(cluster.namesrv)

``Deployment`` is a cluster of several of each, with slaves.
"""

from tests.services.rocketmq.cluster import RocketMQ, create_topics
from tests.services.rocketmq.deployment import Deployment, Member
from tests.services.rocketmq.running import NAMED, running_cluster

__all__ = ["NAMED", "Deployment", "Member", "RocketMQ", "create_topics", "running_cluster"]
