"""The data pipeline of Titanic: its closed requests as tables, its archive, reports, and Spark on both ends of it."""
