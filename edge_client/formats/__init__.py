"""Message formats: what clients and models write, read as requests and messages, and the other way."""
