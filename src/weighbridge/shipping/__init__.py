"""Models handed over to what runs them: stores, servers, the Hub."""
