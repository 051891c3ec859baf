"""Statistics in plain numpy; scipy is the oracle in the tests."""
