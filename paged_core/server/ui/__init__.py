"""The pages: a chat playground and a map of the KV pool. Static files, and the data that the map asks for."""
