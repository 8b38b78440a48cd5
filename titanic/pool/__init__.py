"""The processes of `titanic worker`: one that watches, and children that work."""
