from titanic.cluster.dispatcher import ClusterDispatcher as ClusterDispatcher
from titanic.cluster.node import ClaimingNode as ClaimingNode
from titanic.cluster.settings import SharedLimits as SharedLimits
