from broker.io.access_control import AccessControl as AccessControl
