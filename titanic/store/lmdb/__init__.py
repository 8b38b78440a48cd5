"""The store in LMDB. Start reading at store.py."""
