"""`decide bench`: how right, how sure and how fast an endpoint is on labelled decisions, and the report of it."""
