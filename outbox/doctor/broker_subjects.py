"""What is looked at of the broker: its settings, topics, groups, listeners and discarded halves."""

from typing import Final

from outbox.doctor.findings import Subject

BROKER_REACHABLE: Final = Subject(
    "broker-reachable",
    "no name server, or no broker, can be asked: nothing is published, and no check is answered",
    "start it, or correct OUTBOX_BROKER_URL, OUTBOX_TLS and the keys; see that this host reaches what brokers register",
)
BROKER_READABLE: Final = Subject(
    "broker-readable",
    "a part of what the broker knows could not be read, so nothing is said of it here",
    "give its user the rights that the manual lists for doctor; if the broker has just started, run doctor again",
)
BROKER_EXAMINED: Final = Subject(
    "broker-examined",
    "this transport has no name server, so settings, topics, groups, discarded halves and listeners were not looked at",
    "run doctor once more with --broker-url rocketmq://host:9876, the name servers of the same cluster",
)
BROKER_EMBEDDED: Final = Subject(
    "broker-embedded",
    "a file on this host stands in for RocketMQ: for first runs and tests",
    "set OUTBOX_BROKER_URL to the name servers before anything depends on it",
)
BROKER_VERSION: Final = Subject(
    "broker-version",
    "this version keeps one core busy once a transaction has ended (apache/rocketmq#10966)",
    "run 5.4.0, or a version in which that is mended",
)
BROKER_PERMISSION: Final = Subject(
    "broker-permission",
    "the broker is set to take no messages, or to give none",
    "set brokerPermission=6, unless the broker is being taken out of service",
)
MESSAGE_INDEX: Final = Subject(
    "message-index",
    "without the index no message is found by its id: look-ups cannot tell, and committed rows stay after a crash",
    "set messageIndexEnable=true at the broker and start it again",
)
CHECK_HORIZON: Final = Subject(
    "check-horizon",
    "the broker gives a half up before the lease of the attempt that sent it is over, so no check can finish it",
    "raise transactionCheckMax or transactionCheckInterval (15, 30 s) at the broker, or lower OUTBOX_LEASE",
)
CHECK_BATCH: Final = Subject(
    "check-batch",
    "the broker asks about halves again whose end it has not yet written down: needless checks, all the time",
    "keep transactionOpBatchInterval below transactionTimeOut and transactionCheckInterval",
)
RETENTION: Final = Subject(
    "retention",
    "a row may be deleted while the broker still asks about its half, which then is unknown for ever",
    "raise OUTBOX_RETENTION above transactionTimeOut + transactionCheckInterval * transactionCheckMax",
)
CHECK_HORIZON_SETTING: Final = Subject(
    "check-horizon-setting",
    "transports that cannot confirm (rocketmq+grpc) would take delivery for granted while the broker still asks",
    "set OUTBOX_CHECK_HORIZON to transactionTimeOut + transactionCheckInterval * transactionCheckMax, or more",
)
BROKER_RETENTION: Final = Subject(
    "broker-retention",
    "the broker deletes its files earlier than OUTBOX_BROKER_RETENTION says: absence is taken for proof for too long",
    "set OUTBOX_BROKER_RETENTION to the broker's fileReservedTime, in seconds",
)
FLUSH_TYPE: Final = Subject(
    "flush-type",
    "what the broker acknowledged can be lost with its host (not with its process)",
    "flushDiskType=SYNC_FLUSH, or brokerRole=SYNC_MASTER with a slave, if the facts are worth it",
)
BROKER_ROLE: Final = Subject(
    "broker-role",
    "what the broker acknowledged can be lost with its disk",
    "brokerRole=SYNC_MASTER with a slave, if the facts are worth it",
)
DISK: Final = Subject(
    "broker-disk",
    "above diskMaxUsedSpaceRatio files are deleted before their time, above 90 % sends and commits are refused",
    "give the broker more disk, or lower fileReservedTime",
)
AUTO_TOPIC: Final = Subject(
    "auto-create-topics",
    "a mistyped topic is made by the first message instead of being refused",
    "set autoCreateTopicEnable=false at the broker",
)
TIMER_WHEEL: Final = Subject(
    "timer-wheel",
    "the broker refuses POP, by which `outbox consume` receives",
    "set timerWheelEnable=true at the broker, if consumers of this toolkit read from it",
)
TOPIC: Final = Subject(
    "topic",
    "no broker has the topic: its rows stay pending, and consumers receive nothing from it",
    "correct its name, or make it: mqadmin updateTopic -n … -c … -t TOPIC -a +message.type=TRANSACTION",
)
TOPIC_TYPE: Final = Subject(
    "topic-type",
    "the topic is not one for transactional messages: proxies and other clients refuse them",
    "mqadmin updateTopic -n … -c … -t TOPIC -a +message.type=TRANSACTION, or make it one of plain_topics",
)
TOPIC_QUEUES: Final = Subject(
    "topic-queues",
    "the topic has no queue that takes messages: its rows stay pending",
    "raise writeQueueNums of the topic",
)
TOPIC_PERMISSION: Final = Subject(
    "topic-permission",
    "the topic takes no messages (bit 2 of its perm), or gives none to consumers (bit 4)",
    "set perm=6 on the topic",
)
GROUP: Final = Subject(
    "consumer-group",
    "the broker does not know the consumer group; its first consumer makes it, if autoCreateSubscriptionGroup is on",
    "check the name, or make it: mqadmin updateSubGroup -n … -c … -g GROUP",
)
GROUP_ENABLED: Final = Subject(
    "consumer-group-enabled",
    "the broker gives this group nothing",
    "set consumeEnable=true on the group",
)
GROUP_RETRIES: Final = Subject(
    "consumer-group-retries",
    "push consumers of the group give a message up after fewer failures than the usual 16",
    "raise retryMaxTimes on the group; consumers of this toolkit count for themselves",
)
DISCARDED: Final = Subject(
    "discarded-halves",
    "the broker asked about these halves until it gave up: nobody answered, or nobody could tell",
    "run a listener for their groups; the rows are finished by a relay all the same, see `outbox list --key KEY`",
)
DISCARDED_FOREIGN: Final = Subject(
    "discarded-foreign",
    "discarded halves name this service and another database: a copy or a restored backup publishes as well",
    "find that database; give a copy an identity of its own (`outbox db adopt`), or keep it away from the broker",
)
LISTENER_REGISTERED: Final = Subject(
    "listener-registered",
    "the broker has nobody to ask about halves of this producer group, and gives each up after its last check",
    "run `outbox relay` or `outbox checkback` with the OUTBOX_GROUP that the rows name, where it reaches this broker",
)
