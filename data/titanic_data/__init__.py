"""The data pipeline of Titanic: closed requests as tables, their archive and reports, and Spark at both ends."""
