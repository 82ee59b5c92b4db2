"""The verbs: make an environment, serve, load, judge, search, compare, re-find, audit, report."""
