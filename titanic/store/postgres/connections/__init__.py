"""Connections to the database: making, lending and ending them, its errors, its clock, and arrays as it takes them."""
