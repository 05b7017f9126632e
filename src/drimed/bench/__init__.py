"""The honest benchmark: suites as data, every policy with its authors' settings, on instances that nobody tuned on."""
