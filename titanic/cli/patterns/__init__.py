"""The commands of `titanic pattern`. Each file here has the roles of one pattern."""
