"""Ships models to the programs that run them: stores, servers, the Hub."""
