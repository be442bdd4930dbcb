"""What each operator means: schemas, the table, and its rows."""
