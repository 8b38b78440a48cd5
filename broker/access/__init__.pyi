from broker.access.keys import Keys as Keys
