"""The command `decide invoke`: one decision, or all the rows of a file."""
