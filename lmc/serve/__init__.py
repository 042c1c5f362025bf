"""`lmc serve`: OpenAI's API over any backend, and compiled programs as endpoints; needs the extra `serve`."""
