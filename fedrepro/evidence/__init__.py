"""From rows of rounds to tables, figures and verdicts: never trains itself."""
