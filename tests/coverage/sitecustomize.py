"""Python imports this at its start, with `make coverage`: tests' workers and programs are measured too."""

import coverage

coverage.process_startup()
