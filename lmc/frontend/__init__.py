"""The language, its interpreter, and the capture of programs."""
