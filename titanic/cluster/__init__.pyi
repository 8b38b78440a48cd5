from titanic.cluster.cluster_dispatcher import ClusterDispatcher as ClusterDispatcher
from titanic.cluster.node import ClaimingNode as ClaimingNode
from titanic.cluster.shared_settings import SharedLimits as SharedLimits
