"""What a plan would lose: found before anything is written, and listed in it."""
