"""What a verdict looks like: the report as data, and what every format says of it."""
