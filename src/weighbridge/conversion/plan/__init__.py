"""Plans: built from headers, printed, run."""
