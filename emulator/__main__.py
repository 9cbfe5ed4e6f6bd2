"""`python -m emulator`."""

from emulator.cli import main

raise SystemExit(main())
