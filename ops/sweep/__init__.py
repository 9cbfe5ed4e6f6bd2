"""`decide sweep ENV`: what a destroyed environment left behind in the account, and its removal."""
