from broker.io.access_control import AccessControl as AccessControl
from broker.io.user_connections import UserConnection as UserConnection
