"""Who may do what: users, their keys and permissions, and the file that says so."""
