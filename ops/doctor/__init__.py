"""`decide doctor ENV`: whether an environment will deploy from here, found out without changing anything."""
