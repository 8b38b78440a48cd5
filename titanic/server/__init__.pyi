from titanic.server.gather import GatherEndpoints as GatherEndpoints
