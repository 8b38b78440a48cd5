"""The engine of the store on PostgreSQL. Start reading at store.py."""
