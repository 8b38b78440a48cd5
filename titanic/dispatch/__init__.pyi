from titanic.dispatch.node import ClaimingNode as ClaimingNode
from titanic.dispatch.other_nodes import Cluster as Cluster
