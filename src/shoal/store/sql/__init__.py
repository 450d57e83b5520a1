"""The log in a SQL database: SQLite embedded, PostgreSQL or MariaDB shared."""
