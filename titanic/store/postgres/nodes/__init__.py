"""The nodes that share the store: this one's lease, what is told of each, what they tell each other, recalls."""
