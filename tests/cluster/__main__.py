"""`python3 tests/cluster`: see docs/cluster.md."""

import sys

import command_line

sys.exit(command_line.main())
